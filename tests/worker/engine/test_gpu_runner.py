"""The engine with the GPU's runner, its kernels interpreted: the CPU's answers, and graphs that repeat a step."""

import re
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from torch.utils._pytree import tree_leaves

from kernels import gpu
from kernels.sampling.step import IN_PROMPT
from protocol.guided import Regex
from tests.kernels.hopper import on_hopper
from tests.kernels.pretend_graph import CaptureError, PretendGraph
from tests.support.checkpoints import make_tiny_adapter, make_tiny_checkpoint
from text.tokenizer import Tokenizer
from worker.engine.device import DeviceError, choose_device
from worker.engine.errors import EngineError
from worker.engine.gpu_batch import buffer_words, put_step
from worker.engine.gpu_runner import GpuRunner, _Launched
from worker.engine.gpu_sampler import GpuSampler, SampleTables
from worker.engine.graphs import Graph, bucket_sizes
from worker.engine.loop import StepLoop
from worker.engine.parts import EngineParts, load_parts
from worker.engine.request import EngineRequest, SamplingParams, TokenLogprobs
from worker.engine.sequence import Chunk, Sequence
from worker.engine.settings import EngineSettings
from worker.engine.step_buffer import StepBuffer
from worker.guided import Vocabulary
from worker.guided.compiler import compile_grammar

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
    few, words = array("q", [3, 4, 5, 6]), ((3,), (4, 5), (5, 5), (6, 6, 4))
    penalised = SamplingParams(temperature=0, repetition_penalty=1.5, presence_penalty=1.0, max_tokens=4)
    kinds = [
        (shared, SamplingParams(temperature=0, max_tokens=7), None),
        ([*shared, 7, 8], SamplingParams(temperature=0, max_tokens=5, num_logprobs=2), "small"),
        ([*shared, 9], SamplingParams(temperature=0.9, seed=3, max_tokens=5), "large"),
        ([5] * 33, SamplingParams(temperature=1.2, seed=4, top_p=0.9, top_k=20, max_tokens=5), None),
        (list(range(90)), penalised, None),
        ([11, 12], SamplingParams(temperature=0, logit_bias={17: 100.0}, max_tokens=3), "large"),
        ([13], SamplingParams(temperature=0.7, seed=5, min_p=0.05, min_tokens=4, max_tokens=5), "small"),
        ([14, 15], SamplingParams(temperature=0, num_logprobs=0, logprob_token_ids=(9, 300), max_tokens=3), None),
        ([16], SamplingParams(temperature=4, seed=6, allowed_token_ids=few, bad_words=words, max_tokens=8), None),
        ([16], SamplingParams(temperature=0, bad_words=((17,),), num_logprobs=1, max_tokens=3), None),
    ]
    return [
        EngineRequest(
            request_id=str(i), prompt_ids=prompt, sampling=sampling, adapter=adapter, priority=0 if i == 4 else 2
        )
        for i, (prompt, sampling, adapter) in enumerate(kinds)
    ]


Answers = dict[str, list[int]]
Logprobs = dict[str, list[TokenLogprobs]]


def _answer(parts: EngineParts, requests: list[EngineRequest]) -> tuple[Answers, Logprobs, StepLoop]:
    posted: list[Callable[[], None]] = []
    loop = StepLoop(parts, posted.append)
    for request in requests:
        loop.submit([request.request_id], [request], time.monotonic())
        loop.step()
    answers: Answers = {request.request_id: [] for request in requests}
    logprobs: Logprobs = {request.request_id: [] for request in requests}
    while loop.has_work or posted:
        while posted:
            posted.pop(0)()
        loop.step()
        for stream_id, output in loop.outputs:
            assert not isinstance(output, EngineError), output
            answers[stream_id] += output.token_ids
            logprobs[stream_id] += output.logprobs
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
    for stream_id, expected in their_logprobs.items():
        for ours_of_token, theirs_of_token in zip(our_logprobs[stream_id], expected, strict=True):
            assert ours_of_token.logprob == pytest.approx(theirs_of_token.logprob, abs=1e-3)
            assert dict(ours_of_token.top) == pytest.approx(dict(theirs_of_token.top), abs=1e-3)
    assert any(our_logprobs.values())
    restricted = ours["8"]
    assert set(restricted) <= {4, 5, 6} and len(set(restricted)) > 1
    assert not {(4, 5), (5, 5)} & set(pairwise(restricted))


def test_a_constrained_answer_is_that_of_the_cpu(settings: EngineSettings, parts: EngineParts) -> None:
    tokenizer = Tokenizer.from_folder(settings.model_path)
    config = parts.config
    vocabulary = Vocabulary(tokenizer, vocab_size=config.vocab_size, eos_token_ids=config.eos_token_ids)
    grammar = compile_grammar(vocabulary, Regex("[0-9]{2}, as wanted[.]"))
    wanted = SamplingParams(temperature=0.9, seed=1, max_tokens=40, min_tokens=38)
    free = SamplingParams(temperature=0, max_tokens=3)
    digits = compile_grammar(vocabulary, Regex("[0-9]{12}"))
    one, two, three = (tokenizer.encode(digit, add_special_tokens=False)[0] for digit in "123")
    limited = SamplingParams(
        temperature=2.0,
        seed=2,
        max_tokens=20,
        allowed_token_ids=array("q", [one, two, three, *config.eos_token_ids]),
        bad_words=((one, two), (three, three)),
    )
    requests = [
        EngineRequest(request_id="free", prompt_ids=[5, 6], sampling=free),
        EngineRequest(request_id="wanted", prompt_ids=[11, 12], sampling=wanted, grammar=grammar),
        EngineRequest(request_id="limited", prompt_ids=[13], sampling=limited, grammar=digits),
    ]
    ours, _, _ = _answer(parts, requests)
    with gpu.played_by("cuda", multiprocessors=1):
        theirs, _, _ = _answer(load_parts(settings), requests)
    assert ours == theirs
    assert re.fullmatch("[0-9]{2}, as wanted[.]", tokenizer.decode(ours["wanted"]))
    assert re.fullmatch("[123]{12}", tokenizer.decode(ours["limited"]))
    assert not {(one, two), (three, three)} & set(pairwise(ours["limited"]))


@dataclass
class _Told:
    """A graph, or the filler of masks, that says when it is used."""

    of: Any
    name: str
    events: list[str]

    def capture(self, function: Callable[[], object]) -> None:
        self.of.capture(function)

    def replay(self) -> None:
        self.events.append(self.name)
        self.of.replay()

    def begin(self, matchers: list[Any]) -> Any:
        filling = self.of.begin(matchers)
        return filling and SimpleNamespace(result=lambda: self.events.append(self.name) or filling.result())


def test_masks_are_taken_when_the_model_was_launched_and_before_the_choice(
    settings: EngineSettings, parts: EngineParts
) -> None:
    """With the forward pass in one graph and the choice in another, the answer is that of the CPU."""
    vocabulary = Vocabulary(
        Tokenizer.from_folder(settings.model_path), vocab_size=384, eos_token_ids=parts.config.eos_token_ids
    )
    request = EngineRequest(
        request_id="a",
        prompt_ids=[11, 12],
        sampling=SamplingParams(temperature=0.9, seed=1, max_tokens=8),
        grammar=compile_grammar(vocabulary, Regex("[0-9]{5}")),
    )
    events: list[str] = []
    names = iter(("model", "choice"))
    runner = _runner(parts, max_seqs=1, new_graph=lambda: _Told(PretendGraph(), next(names), events))
    runner._masks = _Told(runner._masks, "masks", events)  # type: ignore[assignment]
    ours, _, _ = _answer(replace(parts, runner=runner), [request])
    assert events[0] == "masks", "the prompt's step has no graph"
    assert len(events) > 6 and events[1:] == ["model", "masks", "choice"] * (len(events) // 3)
    with gpu.played_by("cuda", multiprocessors=1):
        theirs, _, _ = _answer(load_parts(settings), [request])
    assert ours == theirs


def _decoding(runner: GpuRunner, num: int) -> list[Chunk]:
    """So many sequences of different lengths, adapters and wishes, whose last token is known to the GPU alone. The
    cache holds random keys and values."""
    random = torch.Generator().manual_seed(0)
    for cache in runner._caches:
        cache.normal_(generator=random)
    runner._sampler.last.random_(0, 384, generator=random)
    chunks = []
    blocks = count()
    slots = [-1, 0, 1, -1, 1, 0, 0, -1]
    wishes = [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0.8, seed=1, num_logprobs=2),
        SamplingParams(temperature=0, repetition_penalty=1.5, presence_penalty=0.5),
        SamplingParams(temperature=1.1, seed=2, top_k=9, top_p=0.9, logit_bias={5: 2.0}, min_tokens=8),
        SamplingParams(temperature=0, num_logprobs=0, logprob_token_ids=(5, 300, 7)),
        SamplingParams(temperature=0.9, seed=3, allowed_token_ids=array("q", range(3, 384, 5)), bad_words=((8,),)),
    ]
    for i in range(num):
        length = 3 + 4 * (i % 7)
        sampling = wishes[i % len(wishes)]
        request = EngineRequest(request_id=str(i), prompt_ids=[], sampling=sampling)
        tokens = [(7 * i + j) % 300 for j in range(length)]
        sequence = Sequence(str(i), request, tokens, length, b"", 0.0, adapter_slot=slots[i % len(slots)])
        sequence.block_ids = [next(blocks) for _ in range(-(-(length + 1) // 16))]
        sequence.num_computed, sequence.num_ahead = length, 1
        chunks.append(Chunk(sequence, 1))
    sequences = [chunk.sequence for chunk in chunks]
    runner._sampler.fields(sequences, num)
    runner._sampler.confirm(sequences)
    return chunks


def _runner(
    parts: EngineParts,
    *,
    max_seqs: int,
    num_blocks: int = 10,
    sampler: GpuSampler | None = None,
    is_eager: bool = False,
    new_graph: Callable[[], Graph] = PretendGraph,
) -> GpuRunner:
    assert isinstance(parts.runner, GpuRunner)
    device = torch.device("cpu")
    return GpuRunner(
        parts.runner._model,
        parts.lora,
        sampler or GpuSampler(384, (), max_seqs=max_seqs, device=device),
        num_blocks=num_blocks,
        max_model_len=64,
        max_seqs=max_seqs,
        max_tokens=max(256, max_seqs),
        is_eager=is_eager,
        new_graph=new_graph,
    )


def _replayed_equals_eager(runner: GpuRunner, num: int) -> None:
    """A whole step, from the tables to the tokens and log-probabilities, to the last bit, beside what pads it."""
    chunks = _decoding(runner, num)
    sampler = runner._sampler
    before = [
        (each, each.clone()) for each in (*runner._caches, sampler.last, sampler._counts, sampler._asked_logprobs)
    ]
    launched = runner.launch(chunks)
    assert isinstance(launched, _Launched) and launched.num_rows >= num
    replayed = launched.wait()
    after = [table.clone() for table, _ in before]
    for table, values in before:
        table.copy_(values)
    with torch.inference_mode():
        runner._put(chunks, launched.num_rows)
        words = runner._choose(runner._forward_rows(launched.num_rows))
    for (table, _), values in zip(before, after, strict=True):
        assert torch.equal(table, values)
    sequences = [chunk.sequence for chunk in chunks]
    wanted = runner._sampler.wanted_words(words, sequences, launched.num_rows)
    assert replayed.tokens == runner._sampler.read(wanted.numpy(), launched.wishes, launched.num_rows)
    assert all(replayed.tokens)
    for chunk in chunks:
        chunk.sequence.block_ids = []


def test_a_step_with_adapters_is_the_same_in_every_graph(parts: EngineParts) -> None:
    runner = _runner(parts, max_seqs=4, num_blocks=20)
    for num in (1, 2, 3, 4):
        _replayed_equals_eager(runner, num)


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([40, 56], id="two"),
        pytest.param(bucket_sizes(256), id="all", marks=(pytest.mark.long, pytest.mark.timeout(1800))),
    ],
)
def test_every_graph_repeats_its_step(tmp_path: Path, sizes: list[int]) -> None:
    """Up to one row less than the graph has, so that one is filled up."""
    tiny = make_tiny_checkpoint(
        tmp_path / "model", hidden_size=64, intermediate_size=64, num_layers=1, num_heads=1, num_kv_heads=1
    )
    adapters = {name: make_tiny_adapter(tmp_path / name, tiny, seed=rank, rank=rank) for name, rank in ADAPTERS.items()}
    settings = EngineSettings(
        model_path=tiny,
        num_threads=1,
        num_blocks=40,
        num_adapter_slots=2,
        adapters=adapters,
        device="cpu",
        is_eager=True,
    )
    with on_hopper() as hopper:
        parts = load_parts(settings)
        hopper.interprets = False
        runner = _runner(parts, max_seqs=sizes[-1], num_blocks=2 * sizes[-1])
        hopper.interprets = True
        for size in sizes:
            _replayed_equals_eager(runner, max(size - 1, 1))


def test_a_graphs_tables_stand_at_the_same_place_whatever_the_step_holds(parts: EngineParts) -> None:
    """At every bucket: what a graph froze is found again, with other lengths, adapters and numbers of rows."""
    assert isinstance(parts.runner, GpuRunner)
    shapes = replace(parts.runner._shapes, dummy_block=400)
    buffer = StepBuffer(buffer_words(shapes, max_seqs=256, max_tokens=256), torch.device("cpu"))
    sampler = GpuSampler(384, (), max_seqs=256, device=torch.device("cpu"))
    for size in bucket_sizes(256):
        places = set()
        for num, length, slot in ((0, 0, -1), (1, 127, 0), (size, 5, -1), (size, 100, 1), (max(size - 1, 1), 17, 0)):
            chunks = [Chunk(_computed(str(i), length, slot), 1) for i in range(num)]
            tables = put_step(buffer, chunks, shapes, sampler, slot_pages=parts.lora.slot_pages, bucket=size)
            for chunk in chunks:
                chunk.sequence.block_ids = []
            found = [each for each in tree_leaves(_plain(tables)) if isinstance(each, torch.Tensor)]
            numbers = [each for each in tree_leaves(_plain(tables)) if isinstance(each, int)]
            places.add((*((t.data_ptr(), t.shape, t.stride(), t.dtype) for t in found), *numbers))
        assert len(places) == 1, size


def _computed(name: str, length: int, slot: int) -> Sequence:
    request = EngineRequest(request_id=name, prompt_ids=[], sampling=SamplingParams(num_logprobs=length % 2 or None))
    sequence = Sequence(name, request, [1] * length, length, b"", 0.0, adapter_slot=slot, num_computed=length - 1)
    sequence.block_ids = list(range(-(-length // 16)))
    return sequence


def _plain(tables: object) -> object:
    if is_dataclass(tables):
        return [_plain(getattr(tables, each.name)) for each in fields(tables)]
    if isinstance(tables, dict):
        return [_plain(each) for each in tables.values()]
    return tables


def test_a_read_of_the_host_inside_a_step_fails_the_capture(parts: EngineParts) -> None:
    runner = parts.runner
    assert isinstance(runner, GpuRunner)
    graph = PretendGraph()
    with torch.inference_mode():
        runner._put([], 2)
        graph.capture(lambda: runner._choose(runner._forward_rows(2)))
        with pytest.raises(CaptureError):
            PretendGraph().capture(lambda: runner._choose(runner._forward_rows(2))[0].item())


def test_buckets_grow_to_the_batch() -> None:
    assert bucket_sizes(1) == [1]
    assert bucket_sizes(8) == [1, 2, 4, 8]
    assert bucket_sizes(20) == [1, 2, 4, 8, 16, 24]
    assert bucket_sizes(400)[-3:] == [224, 240, 256]


class _ShortOfMemory(GpuSampler):
    """Lacks memory once, when a step has so many rows, after its counts were changed."""

    num_rows: int | None = 3

    def choose(self, logits: torch.Tensor, tables: SampleTables) -> torch.Tensor:
        words = super().choose(logits, tables)
        if len(logits) == self.num_rows:
            self.num_rows = None
            raise torch.OutOfMemoryError("CUDA out of memory")
        return words


def test_a_step_that_lacks_memory_is_computed_anew_and_changes_no_answer(parts: EngineParts) -> None:
    """Each request alone: the tables on the GPU, which the step had changed already, are written again."""
    penalties = SamplingParams(temperature=0, frequency_penalty=1.5, repetition_penalty=1.3, max_tokens=5)
    requests = [EngineRequest(request_id=str(i), prompt_ids=[7 * i, 5], sampling=penalties) for i in range(3)]
    plain = GpuSampler(384, (), max_seqs=8, device=torch.device("cpu"))
    runner = _runner(parts, max_seqs=8, sampler=plain, is_eager=True)
    expected, _, _ = _answer(replace(parts, runner=runner), requests)
    short = _ShortOfMemory(384, (), max_seqs=8, device=torch.device("cpu"))
    runner = _runner(parts, max_seqs=8, sampler=short, is_eager=True)
    ours, _, loop = _answer(replace(parts, runner=runner), requests)
    assert short.num_rows is None and loop.num_failed_steps_total == 1
    assert ours == expected
    said = [sampler._counts % IN_PROMPT for sampler in (short, plain)]
    assert torch.equal(*said), "no token is counted twice"


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


def test_no_later_step_compiles_a_kernel_anew(settings: EngineSettings) -> None:
    """A kernel specialised on a number that varies from step to step would stop all streams for a second."""
    compiled: list[str] = []

    def note(module: Any, function: Any, name: str, files: dict[str, str], key: str) -> None:
        compiled.append(name)

    with on_hopper():
        triton.knobs.runtime.kernel_load_start_hook.add(note)
        try:
            parts = load_parts(replace(settings, num_blocks=40))
            _answer(parts, _prompts([5, 30]))
            before = len(compiled)
            for lengths in ([16], [100, 1], [90, 120, 33], [64] * 4):
                _answer(parts, _prompts(lengths))
            assert compiled[before:] == []
        finally:
            triton.knobs.runtime.kernel_load_start_hook.remove(note)


def _prompts(lengths: list[int]) -> list[EngineRequest]:
    """Requests with the adapters in turn, none of which can use another's prefix."""
    sampling = SamplingParams(temperature=0, max_tokens=2)
    return [
        EngineRequest(
            request_id=f"{length}.{i}",
            prompt_ids=[(7 * j + 31 * i + length) % 300 for j in range(length)],
            sampling=sampling,
            adapter=("small", "large", None)[i % 3],
        )
        for i, length in enumerate(lengths)
    ]
