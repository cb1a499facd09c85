"""How fields of OpenAI's Responses API that are not fully supported are treated."""

from collections.abc import Mapping

from protocol.openai_fields import CACHED, COMPLETIONS, TEXT_ONLY, FieldTable

_NO_HOSTED = "the platform runs no tools in responses; offer functions"
_NO_CUSTOM = "custom tools are not supported; describe the tool as a function"
_NO_PROGRAMS = "models here do not call tools from programs; leave it out"
_WHOLE = "there is no search for tools here: all are offered; leave it out"
_NOT_WAITED = "calls are not waited for here: send their outputs in the next request; leave it out"
_NO_BACKGROUND = "nothing runs in the background here; stream the answer, or send a batch"
_HOSTED_TOOLS = (
    *("file_search", "computer", "computer_use_preview", "web_search", "web_search_2025_08_26", "mcp"),
    *("code_interpreter", "programmatic_tool_calling", "image_generation", "local_shell", "shell", "tool_search"),
    *("web_search_preview", "web_search_preview_2025_03_11", "apply_patch", "namespace"),
)
_HOSTED_CHOICES = (
    *("file_search", "web_search_preview", "computer", "computer_use_preview", "computer_use", "mcp"),
    *("web_search_preview_2025_03_11", "image_generation", "code_interpreter", "programmatic_tool_calling"),
    *("apply_patch", "shell"),
)
_HOSTED_ITEMS = (
    *("file_search_call", "computer_call", "computer_call_output", "web_search_call", "tool_search_call"),
    *("tool_search_output", "additional_tools", "image_generation_call", "code_interpreter_call"),
    *("local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output", "apply_patch_call"),
    *("apply_patch_call_output", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "mcp_call"),
    *("program", "program_output"),
)

_NO_OPS: Mapping[str, str] = {
    "metadata": "up to 16 pairs, as at OpenAI; returned with the response while it is stored",
    "safety_identifier": "",
    "prompt_cache_key": "prefixes are found by their content, within a tenant",
    "input.id": "as in answers",
    "input.status": "as in answers",
    "input.phase": "not shown to the model",
    "input.summary": "reasoning is not shown to the model again",
    "input.encrypted_content": "reasoning is not shown to the model again",
    "input.content.annotations": "as in answers",
    "input.content.logprobs": "as in answers",
}

_REFUSED: Mapping[str, str] = {
    "access_programs": "there are no such programs here; leave it out",
    "background_options": _NO_BACKGROUND,
    "context_management": 'nothing is compacted here; leave it out, and send truncation "auto" for a full window',
    "conversation": "go on by previous_response_id, or chat with the header X-Session-Id",
    "image": f"{TEXT_ONLY}; leave it out",
    "include": "no more than what a response always shows; leave it out",
    "max_tool_calls": "only OpenAI's own tools are counted so; leave it out",
    "moderation": "there is no moderation here; leave it out",
    "prompt": "there are no stored prompts here; send instructions and input",
    "prompt_cache_options": CACHED,
    "reasoning.context": "thoughts are not shown to a model again; leave it out",
    "reasoning.generate_summary": "thoughts are shown whole; leave it out",
    "reasoning.mode": "there is one way to think here; leave it out",
    "reasoning.summary": "thoughts are shown whole; leave it out",
    "input.content.type=input_image": f"{TEXT_ONLY}, no images",
    "input.content.type=input_file": f"{TEXT_ONLY}, no files; send their text",
    "input.content.type=refusal": "send it as output_text",
    "input.content.type=reasoning_text": "send it in an item of type reasoning",
    "input.content.prompt_cache_breakpoint": CACHED,
    "input.output.type=input_image": f"{TEXT_ONLY}, no images",
    "input.output.type=input_file": f"{TEXT_ONLY}, no files; send their text",
    "input.output.prompt_cache_breakpoint": CACHED,
    "input.async": _NOT_WAITED,
    "input.caller": _NO_PROGRAMS,
    "input.namespace": _WHOLE,
    "input.type=custom_tool_call": _NO_CUSTOM,
    "input.type=custom_tool_call_output": _NO_CUSTOM,
    "input.type=item_reference": "send the item itself, or go on by previous_response_id",
    "input.type=compaction": "nothing is compacted here; send the items themselves",
    "input.type=compaction_trigger": 'nothing is compacted here; send truncation "auto" for a full window',
    "input.type=configuration_update": "send reasoning and text as fields of the request",
    **{f"input.type={kind}": _NO_HOSTED for kind in _HOSTED_ITEMS},
    "tools.allowed_callers": _NO_PROGRAMS,
    "tools.async": _NOT_WAITED,
    "tools.defer_loading": _WHOLE,
    "tools.output_schema": "results are passed on as they are; leave it out",
    "tools.type=custom": _NO_CUSTOM,
    **{f"tools.type={kind}": _NO_HOSTED for kind in _HOSTED_TOOLS},
    "tool_choice.type=custom": _NO_CUSTOM,
    **{f"tool_choice.type={kind}": _NO_HOSTED for kind in _HOSTED_CHOICES},
}

_PARTLY: Mapping[str, str] = {
    "background": f"only false: {_NO_BACKGROUND}",
    "top_logprobs": "only 0; ask for log-probabilities by a chat completion",
    "text.verbosity": COMPLETIONS.partly["verbosity"],
    **{
        name: COMPLETIONS.partly[name]
        for name in ("prompt_cache_retention", "service_tier", "stream_options.include_obfuscation")
    },
}

_NOTES: Mapping[str, str] = {
    "store": "stored unless false, for an hour (`TIERGATE_RESPONSE_TTL_S`, else `TIERGATE_SESSION_TTL_S`)",
    "truncation": "with `auto` the oldest turns are dropped, each as a whole",
    "instructions": "for this response alone, as at OpenAI",
    "reasoning.effort": COMPLETIONS.notes["reasoning_effort"],
    "text.format.strict": COMPLETIONS.no_ops["response_format.json_schema.strict"],
    "user": COMPLETIONS.notes["user"],
}

RESPONSES = FieldTable(_NO_OPS, _REFUSED, _PARTLY, _NOTES)
