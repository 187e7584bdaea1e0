"""Whether `docs/models.md` is about the code that is here."""

from tools.models import record
from tools.models.catalogue import ENTRIES
from tools.models.code_hash import code_hash
from tools.models.page import page


def test_the_page_is_about_this_code() -> None:
    """Models that failed stand on it as such; none may be of other code, or missing."""
    rows, code = record.load(), code_hash()
    left = [entry.name for entry in ENTRIES if entry.name not in rows or rows[entry.name].code != code]
    assert not left, (
        f"engine code changed since docs/models.md was made (it is {code} now): run `make models`, which tries what "
        f"has no result of this code: {', '.join(left)}"
    )
    text = (record.ROOT / "docs" / "models.md").read_text()
    assert text == page(rows, ENTRIES, code), "docs/models.md is not what its results say: run `make models`"
