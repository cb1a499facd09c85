from docs.api_reference import TARGET, read_document, render


async def test_the_api_reference_is_up_to_date() -> None:
    assert TARGET.read_text() == render(await read_document()), "run `make docs`"


async def test_the_document_names_every_data_plane_path() -> None:
    paths = set((await read_document())["paths"])
    assert {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/models",
        "/v1/tokenize",
        "/v1/detokenize",
        "/v1/route",
        "/v1/usage",
        "/health",
        "/ready",
        "/metrics",
    } <= paths
