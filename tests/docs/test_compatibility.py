import openai

from docs.compatibility import ENDPOINTS, HEAD, TARGET, render, row, standings


def test_the_page_of_compatibility_is_up_to_date() -> None:
    page = TARGET.read_text()
    if page.startswith(HEAD.format(version=openai.__version__)):
        assert page == render(), "run `make docs`"
        return
    # Made by another release of OpenAI's package, which may have other fields.
    for endpoint in ENDPOINTS:
        section = page.partition(f"\n## `{endpoint}`\n")[2].partition("\n## ")[0]
        for field, standing in standings(endpoint).items():
            if f"| `{field}` |" in section:
                assert standing is not None and row(field, standing) in section, "run `make docs`"
