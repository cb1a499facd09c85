"""Compiles the answer format that a request asks for into a grammar, before anything is queued."""

from collections.abc import Sequence

from protocol.answer_format import Wanted, wanted_format
from protocol.errors import ProtocolError
from protocol.guided import AnyText, InOrder, Literal, Marked, OneOf, Regex, Spec
from protocol.messages import Tool
from protocol.requests import ChatCompletionRequest, GenerationRequest
from protocol.tools import offer_of
from text.prompts import is_thinking_opened
from text.reasoning import MARKS
from text.tool_calls.grammar import schemas_of, spec_of_calls
from worker.guided import BadGrammar, Grammar, GrammarCompiler
from worker.server.caller import Caller
from worker.server.replica import Replica


async def grammar_for(replica: Replica, request: GenerationRequest, caller: Caller) -> Grammar | None:
    """None if any text is a valid answer. Raises ProtocolError, which names the field at fault."""
    tools: Sequence[Tool] = ()
    wanted = wanted_format(request)
    if isinstance(request, ChatCompletionRequest):
        held = _with_calls(replica, request, wanted)
        if held is not wanted:
            tools, wanted = request.tools or (), held
    if wanted is None:
        return None
    if replica.grammars is None:
        raise ProtocolError(
            "this model's answers cannot be held to a format, since its tokens are not the bytes of its text",
            param=wanted.param,
            code="unsupported",
        )
    spec = _after_thoughts(replica, request, wanted)
    salt = caller.cache_salt(request.cache_salt)
    try:
        grammar = await replica.grammars.compile(spec, salt=salt)
    except BadGrammar as error:
        param = await _place_in(tools, replica.grammars, salt) or wanted.param
        raise BadGrammar(
            f"{param}: {error.message}" if tools else error.message, param=param, code=error.code
        ) from error
    replica.metrics.constrained.inc()
    return grammar


def _with_calls(replica: Replica, request: ChatCompletionRequest, wanted: Wanted | None) -> Wanted | None:
    """The format of an answer that may, or must, contain tool calls; `wanted` itself if tools change nothing."""
    offer = offer_of(request)
    if offer is None:
        return wanted
    spec = spec_of_calls(replica.tool_format, offer, answer=wanted.spec if wanted else None)
    if spec is None or (replica.grammars is None and not offer.is_strict):
        return wanted
    return Wanted(spec, "tools" if wanted is None else wanted.param)


def _after_thoughts(replica: Replica, request: GenerationRequest, wanted: Wanted) -> Spec:
    """Applies the format only after a reasoning model's thoughts, which are free text up to their closing mark."""
    if replica.reasoning is None or not isinstance(request, ChatCompletionRequest):
        return wanted.spec
    opened, closed = MARKS[replica.reasoning]
    thoughts, gap = Marked(InOrder((AnyText(), Literal(closed)))), Regex("[ \n]{0,4}")
    if is_thinking_opened(replica.bundle, request, replica.reasoning):
        return InOrder((thoughts, gap, wanted.spec))
    return OneOf((wanted.spec, InOrder((Marked(Literal(opened)), thoughts, gap, wanted.spec))))


async def _place_in(tools: Sequence[Tool], grammars: GrammarCompiler, salt: str) -> str | None:
    """The field of the first tool whose schema fails to compile on its own; None if there is no such tool."""
    for i, schema in enumerate(schemas_of(tools)):
        try:
            await grammars.compile(schema, salt=salt)
        except BadGrammar:
            return f"tools[{i}].function.parameters"
    return None
