"""Names that are renamed where they are meant, and nothing that only reads alike."""

from pathlib import Path

from tools.rename_names import hand_on, read_table, renamed

TABLE = read_table("""
name    house.rooms.Desk    Manager     # a class
name    house.rooms.place   choose
word    condemn             invalidate
""")


def test_a_class_is_renamed_where_it_is_defined_and_used() -> None:
    source = 'class Desk:\n    """A `Desk`."""\n    def same(self) -> "Desk": return Desk()\n'
    assert renamed(source, "house.rooms", TABLE) == (
        'class Manager:\n    """A `Manager`."""\n    def same(self) -> "Manager": return Manager()\n'
    )


def test_imports_are_followed_with_and_without_aliases() -> None:
    source = "from house.rooms import Desk, place as put\nfrom house import rooms\n"
    source += "put(Desk, rooms.place, rooms.Desk.place)\n"
    assert renamed(source, "other", TABLE) == (
        "from house.rooms import Manager, choose as put\nfrom house import rooms\n"
        "put(Manager, rooms.choose, rooms.Manager.place)\n"
    )


def test_what_only_reads_alike_stays() -> None:
    source = (
        "from house.rooms import place\n\n"
        "def one(place: int) -> int:\n    return place\n\n"
        "def two(a: object) -> object:\n    a.place = place(place=1)\n    return {'place': a}\n"
    )
    assert renamed(source, "other", TABLE) == (
        "from house.rooms import choose\n\n"
        "def one(place: int) -> int:\n    return place\n\n"
        "def two(a: object) -> object:\n    a.place = choose(place=1)\n    return {'place': a}\n"
    )
    assert renamed("Desk = place = 1\n", "other", TABLE) == "Desk = place = 1\n"


def test_words_are_replaced_wherever_code_has_them_and_in_no_string() -> None:
    source = "pool.condemn(slot, condemn=1)  # condemn, `invalidate`\nprint('condemn', f'condemn {pool.condemn}')\n"
    assert renamed(source, "other", TABLE) == (
        "pool.invalidate(slot, invalidate=1)  # condemn, `invalidate`\n"
        "print('condemn', f'condemn {pool.invalidate}')\n"
    )


def test_prose_names_modules_with_dots() -> None:
    source = '"""See `house.rooms.Desk.x` and house.rooms.place; the Desk stays a desk."""\n'
    assert renamed(source, "other", TABLE) == (
        '"""See `house.rooms.Manager.x` and house.rooms.choose; the Desk stays a desk."""\n'
    )


def test_letters_of_several_bytes_do_not_shift_what_follows() -> None:
    source = "from house.rooms import Desk\ntell('é', Desk)\n"
    assert renamed(source, "other", TABLE) == "from house.rooms import Manager\ntell('é', Manager)\n"


def test_names_that_a_package_hands_on_are_followed() -> None:
    table = read_table("name house.rooms.Desk Manager")
    package = "from house.rooms import Desk\n__all__ = ['Desk']\n"
    hand_on({Path("house/__init__.py"): package}, table)
    assert renamed(package, "house", table) == "from house.rooms import Manager\n__all__ = ['Manager']\n"
    assert renamed("from house import Desk\nDesk()\n", "other", table) == "from house import Manager\nManager()\n"
