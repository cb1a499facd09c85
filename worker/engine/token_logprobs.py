"""Log-probabilities beside tokens, as the requests of a batch want them."""

from dataclasses import dataclass

from torch import Tensor, tensor

from kernels.sampling import logprobs
from worker.engine.request import SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Wish:
    """Wants the log-probabilities of `ids`, or, if empty, of the num_top likeliest. has_rank: also the token's rank."""

    num_top: int = 0
    ids: tuple[int, ...] = ()
    has_rank: bool = False


def wish_of(sampling: SamplingParams) -> Wish | None:
    """The wish for the tokens of an answer; None for no log-probabilities."""
    if sampling.num_logprobs is None:
        return None
    return Wish(ids=sampling.logprob_token_ids) if sampling.logprob_token_ids else Wish(sampling.num_logprobs)


def read_logprobs(logits: Tensor, ids: Tensor, wishes: list[Wish]) -> list[TokenLogprobs]:
    """For each row of the model's own logits [n, vocab], the log-probabilities of its id and of the wanted ids."""
    own, top, top_ids = logprobs(logits, ids, num_top=max(wish.num_top for wish in wishes))
    found = [
        TokenLogprobs(logprob, tuple(zip(likely_ids[: wish.num_top], likely[: wish.num_top], strict=True)))
        for logprob, likely, likely_ids, wish in zip(own.tolist(), top.tolist(), top_ids.tolist(), wishes, strict=True)
    ]
    ranks = (logits > logits.gather(1, ids[:, None])).sum(dim=1).tolist() if any(w.has_rank for w in wishes) else ()
    for row, wish in enumerate(wishes):
        if wish.ids:
            asked = logits[row].log_softmax(dim=-1)[tensor(wish.ids, device=logits.device)].tolist()
            found[row] = TokenLogprobs(found[row].logprob, tuple(zip(wish.ids, asked, strict=True)))
        if wish.has_rank:
            found[row] = TokenLogprobs(found[row].logprob, found[row].top, rank=ranks[row] + 1)
    return found
