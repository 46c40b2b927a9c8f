"""Protects the table of families and features: it is what the tests prove, and no cell is without a test."""

from docs.families import PAGE, collect, page


def test_the_page_is_what_the_tests_prove() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(collect()), "run: python -m docs.families"
