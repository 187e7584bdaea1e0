"""Names of moved modules in code and prose, and that a second run changes nothing."""

from tools.move_modules import read_table, rewritten

TABLE = read_table("""
# old, new
front.app api.rest.app
front.hearing api.hearing
front api
kv.index kv.index.protocol
kv.memory kv.index.memory
""")


def test_modules_that_move_to_different_packages_are_imported_from_each() -> None:
    source = "from front import app, hearing as ears, other\n"
    assert rewritten(source, TABLE, python=True) == (
        "from api import other\nfrom api.rest import app\nfrom api import hearing as ears\n"
    )


def test_a_package_may_take_the_name_of_a_module_that_moves_into_it() -> None:
    source = "from kv import memory\nfrom kv.index import Index\nimport kv.memory\n"
    once = "from kv.index import memory\nfrom kv.index.protocol import Index\nimport kv.index.memory\n"
    assert rewritten(source, TABLE, python=True) == once


def test_texts_name_modules_by_dots_and_by_paths() -> None:
    text = (
        "see `front.app.Rest`, `front/app.py`, `front/` and kv/index.py; not confront.app, front.apple, a/front-door"
    )
    assert rewritten(text, TABLE, python=False) == (
        "see `api.rest.app.Rest`, `api/rest/app.py`, `api/` and kv/index/protocol.py; "
        "not confront.app, api.apple, a/front-door"
    )


def test_what_was_rewritten_stays_as_it_is() -> None:
    once = rewritten("`kv.index` and kv/index.py, `kv.memory`", TABLE, python=False)
    assert rewritten(once, TABLE, python=False) == once
