"""The engine with the GPU's runner, its kernels interpreted: the CPU's answers, and graphs that repeat a step."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from kernels import gpu
from tests.kernels.hopper import on_hopper
from tests.kernels.pretend_graph import CaptureError, PretendGraph
from tests.support.checkpoints import make_tiny_adapter, make_tiny_checkpoint
from worker.engine.device import DeviceError, choose_device
from worker.engine.errors import EngineError
from worker.engine.gpu_runner import GpuRunner
from worker.engine.graphs import bucket_sizes
from worker.engine.loop import StepLoop
from worker.engine.parts import EngineParts, load_parts
from worker.engine.request import EngineRequest, SamplingParams, TokenLogprobs
from worker.engine.sequence import Chunk, Sequence
from worker.engine.settings import EngineSettings

ADAPTERS = {"small": 4, "large": 40}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> EngineSettings:
    folder = tmp_path_factory.mktemp("gpu")
    checkpoint = make_tiny_checkpoint(folder / "model", hidden_size=256, num_heads=4, num_kv_heads=2, max_model_len=128)
    adapters = {
        name: make_tiny_adapter(folder / name, checkpoint, seed=rank, rank=rank) for name, rank in ADAPTERS.items()
    }
    return EngineSettings(
        model_path=checkpoint,
        num_threads=1,
        num_blocks=10,
        max_num_seqs=8,
        max_batched_tokens=64,
        num_adapter_slots=2,
        adapters=adapters,
        device="cpu",
        is_eager=True,
    )


@pytest.fixture
def parts(settings: EngineSettings) -> Iterator[EngineParts]:
    with on_hopper():
        yield load_parts(settings)


def _requests() -> list[EngineRequest]:
    """The fifth needs most of the blocks at once, so that others give way to it and begin anew."""
    shared = list(range(20, 48))
    penalised = SamplingParams(temperature=0, repetition_penalty=1.5, presence_penalty=1.0, max_tokens=4)
    kinds = [
        (shared, SamplingParams(temperature=0, max_tokens=7), None),
        ([*shared, 7, 8], SamplingParams(temperature=0, max_tokens=5, num_logprobs=2), "small"),
        ([*shared, 9], SamplingParams(temperature=0.9, seed=3, max_tokens=5), "large"),
        ([5] * 33, SamplingParams(temperature=1.2, seed=4, top_p=0.9, top_k=20, max_tokens=5), None),
        (list(range(90)), penalised, None),
        ([11, 12], SamplingParams(temperature=0, logit_bias={17: 100.0}, max_tokens=3), "large"),
        ([13], SamplingParams(temperature=0.7, seed=5, min_p=0.05, min_tokens=4, max_tokens=5), "small"),
    ]
    return [
        EngineRequest(
            request_id=str(i), prompt_ids=prompt, sampling=sampling, adapter=adapter, priority=0 if i == 4 else 2
        )
        for i, (prompt, sampling, adapter) in enumerate(kinds)
    ]


Answers = dict[str, list[int]]


def _answer(parts: EngineParts, requests: list[EngineRequest]) -> tuple[Answers, list[TokenLogprobs], StepLoop]:
    posted: list[Callable[[], None]] = []
    loop = StepLoop(parts, posted.append)
    for request in requests:
        loop.submit([request.request_id], [request], time.monotonic())
        loop.step()
    answers: Answers = {request.request_id: [] for request in requests}
    logprobs: list[TokenLogprobs] = []
    while loop.has_work or posted:
        while posted:
            posted.pop(0)()
        loop.step()
        for stream_id, output in loop.outputs:
            assert not isinstance(output, EngineError), output
            answers[stream_id] += output.token_ids
            logprobs += output.logprobs
        loop.outputs.clear()
    loop.check_blocks()
    return answers, logprobs, loop


def test_the_engine_answers_as_on_the_cpu(settings: EngineSettings, parts: EngineParts) -> None:
    """Mixed adapters, preemption, cached prefixes, seeds, penalties, biases, logprobs."""
    assert isinstance(parts.runner, GpuRunner) and not gpu.refused()
    ours, our_logprobs, _ = _answer(parts, _requests())
    assert parts.scheduler.num_preemptions > 0
    with gpu.played_by("cuda", multiprocessors=1):
        theirs, their_logprobs, _ = _answer(load_parts(settings), _requests())
    assert ours == theirs
    assert all(ours.values())
    assert [each.logprob for each in our_logprobs] == pytest.approx([e.logprob for e in their_logprobs], abs=1e-3)


def _decoding(parts: EngineParts, runner: GpuRunner, count: int) -> list[Chunk]:
    """So many sequences of different lengths and adapters, computed but for their last token."""
    chunks = []
    blocks = iter(range(parts.scheduler.pool.num_blocks))
    slots = [-1, 0, 1, -1, 1, 0, 0, -1]
    for i in range(count):
        length = 3 + 4 * i
        request = EngineRequest(request_id=str(i), prompt_ids=[])
        sequence = Sequence(str(i), request, [(7 * i + j) % 300 for j in range(length)], length, b"", 0.0)
        sequence.block_ids = [next(blocks) for _ in range(-(-length // 16))]
        sequence.adapter_slot = slots[i]
        runner.run([Chunk(sequence, length - 1)])
        sequence.num_computed = length - 1
        chunks.append(Chunk(sequence, 1))
    return chunks


def test_a_step_with_adapters_is_the_same_in_every_graph(settings: EngineSettings, parts: EngineParts) -> None:
    """To the last bit, beside what pads it; and nearly that of the step without padding."""
    runner = GpuRunner(
        parts.runner._model,
        parts.lora,
        num_blocks=14,
        max_model_len=128,
        max_seqs=4,
        max_tokens=64,
        new_graph=PretendGraph,
    )
    eager = parts.runner
    assert isinstance(eager, GpuRunner)
    for count in (1, 3, 4):
        chunks = _decoding(parts, runner, count)
        replayed = runner.run(chunks).logits
        bucket = next(size for size in bucket_sizes(4) if size >= count)
        assert replayed.shape == (count, 384)
        replayed = replayed.clone()
        with torch.inference_mode():
            runner._put(chunks, bucket)
            assert torch.equal(runner._compute(bucket)[:count], replayed)
        _decoding(parts, eager, count)
        assert torch.allclose(eager.run(chunks).logits, replayed, atol=1e-4)


def test_a_read_of_the_host_inside_a_step_fails_the_capture(parts: EngineParts) -> None:
    runner = parts.runner
    assert isinstance(runner, GpuRunner)
    graph = PretendGraph()
    with torch.inference_mode():
        runner._put([], 2)
        graph.capture(lambda: runner._compute(2))
        with pytest.raises(CaptureError):
            PretendGraph().capture(lambda: runner._compute(2)[0].argmax().item())


def test_buckets_grow_to_the_batch() -> None:
    assert bucket_sizes(1) == [1]
    assert bucket_sizes(8) == [1, 2, 4, 8]
    assert bucket_sizes(20) == [1, 2, 4, 8, 16, 24]
    assert bucket_sizes(400)[-3:] == [224, 240, 256]


def test_a_kernel_that_computes_something_else_is_left_to_torch(
    settings: EngineSettings, caplog: pytest.LogCaptureFixture
) -> None:
    """A head size that no kernel takes fails its self-check, and the model is served nevertheless."""
    folder = settings.model_path.parent / "narrow"
    narrow = folder if folder.exists() else make_tiny_checkpoint(folder, max_model_len=128)
    plain = EngineSettings(
        model_path=narrow, num_threads=1, num_blocks=14, max_num_seqs=4, num_adapter_slots=1, device="cpu"
    )
    request = EngineRequest(request_id="a", prompt_ids=[1, 2, 3], sampling=SamplingParams(temperature=0, max_tokens=4))
    with on_hopper():
        parts = load_parts(plain)
        assert set(gpu.refused()) == {"paged_decode", "paged_prefill"}
        ours, _, _ = _answer(parts, [request])
    assert "is not used, torch computes instead" in caplog.text
    assert ours == _answer(load_parts(plain), [request])[0]


def test_too_little_memory_is_told_in_one_line(settings: EngineSettings) -> None:
    def no_memory() -> PretendGraph:
        raise torch.OutOfMemoryError("CUDA out of memory")

    small = replace(settings, is_eager=False, max_num_seqs=1, adapters={})
    with on_hopper(), pytest.raises(DeviceError, match="too little memory on the GPU"):
        load_parts(small, new_graph=no_memory)


def test_a_gpu_that_is_not_there_is_told_in_one_line() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    assert choose_device("auto") == "cpu"
    with pytest.raises(DeviceError, match="torch finds no GPU"):
        choose_device("cuda")
