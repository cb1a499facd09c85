import msgspec
import pytest

from protocol.load import BadSignature, LoadReport, Registration, seal, unseal

LOAD = LoadReport(
    worker_id="host-1-a",
    model="m",
    model_version="v",
    pool="small",
    adapters=("pirate",),
    num_running=1,
    num_waiting=2,
    max_num_seqs=64,
    max_waiting=256,
    max_model_len=2048,
    num_blocks=100,
    num_free_blocks=90,
    block_size=16,
    is_draining=False,
    prompt_tokens_total=1,
    completion_tokens_total=2,
    discarded_tokens_total=3,
)
REGISTRATION = Registration(url="http://127.0.0.1:1", sent_at_ms=1, load=LOAD)


def test_a_sealed_registration_comes_back() -> None:
    assert unseal(seal(REGISTRATION, worker_key="k"), worker_keys=("k",)) == REGISTRATION


@pytest.mark.parametrize("position", [0, 63, 64, 65, 80, -1])
def test_a_changed_byte_is_noticed(position: int) -> None:
    sealed = bytearray(seal(REGISTRATION, worker_key="k"))
    sealed[position] ^= 1
    with pytest.raises((BadSignature, msgspec.MsgspecError)) as caught:
        unseal(bytes(sealed), worker_keys=("k",))
    assert caught.type is BadSignature


@pytest.mark.parametrize("sealed", [b"", b".", b"{}", msgspec.json.encode(REGISTRATION), "é".encode()])
def test_what_was_never_sealed_is_refused(sealed: bytes) -> None:
    with pytest.raises(BadSignature):
        unseal(sealed, worker_keys=("k",))


def test_another_key_does_not_open_it() -> None:
    with pytest.raises(BadSignature):
        unseal(seal(REGISTRATION, worker_key="k"), worker_keys=("K",))
