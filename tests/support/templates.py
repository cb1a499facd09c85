"""Chat templates in the style of common model families, and the tokens that each needs."""

from dataclasses import dataclass

import tokenizers
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from tests.support.vocabularies import add_tokens, make_byte_level, make_sentencepiece
from text.bundle import Bundle
from text.chat import ChatTemplate
from text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Style:
    """special, plain: added tokens with and without the special flag, in addition to `<s>`, `</s>` and `<unk>`."""

    name: str
    template: str
    special: tuple[str, ...]
    plain: tuple[str, ...] = ()
    is_sentencepiece: bool = False
    has_system: bool = True
    eats_space: bool = False

    @property
    def control_tokens(self) -> tuple[str, ...]:
        return ("<s>", "</s>", "<unk>", *self.special, *(token for token in self.plain if "｜" in token))

    def tokenizer_json(self) -> str:
        base = make_sentencepiece() if self.is_sentencepiece else make_byte_level()
        flagged = [AddedToken(text, special=True, normalized=False, rstrip=self.eats_space) for text in self.special]
        return add_tokens(base.tokenizer_json, [*flagged, *(AddedToken(text, special=False) for text in self.plain)])

    def bundle(self, *, allow_special_tokens: bool = False) -> Bundle:
        named = {"bos_token": "<s>", "eos_token": "</s>"}
        tokenizer = Tokenizer(self.tokenizer_json(), special_tokens=named, chat_templates=[self.template])
        template = ChatTemplate({"default": self.template}, named, tokenizer.seal)
        return Bundle(tokenizer, template, max_model_len=None, allow_special_tokens=allow_special_tokens)

    def theirs(self) -> PreTrainedTokenizerFast:
        """The same tokenizer and template in transformers."""
        inner = tokenizers.Tokenizer.from_str(self.tokenizer_json())
        found = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
        found.chat_template = self.template
        return found


HERMES = Style(
    name="ChatML with tools, as Hermes and Qwen",
    special=("<|im_start|>", "<|im_end|>"),
    plain=("<tool_call>", "</tool_call>", "<think>", "</think>"),
    template="""
{%- if tools %}
    {{- '<|im_start|>system\\nYou may call functions within <tool_call></tool_call>:\\n<tools>' }}
    {%- for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + ((' ' + message.name) if message.name else '') + '\\n' + content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
            {{- (call.function.arguments | tojson) ~ ', "id": "' ~ call.id ~ '"}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
)
LLAMA = Style(
    name="Llama 3",
    special=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>", "<|reserved_7|>"),
    template="""
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}""",
)
MISTRAL = Style(
    name="Mistral",
    special=("[INST]", "[/INST]", "[TOOL_CALLS]"),
    is_sentencepiece=True,
    has_system=False,
    template="""
{{- bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + message['content'] + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message['content'] | trim + eos_token }}
    {%- endif %}
{%- endfor %}""",
)
GEMMA = Style(
    name="Gemma",
    special=("<start_of_turn>", "<end_of_turn>"),
    is_sentencepiece=True,
    has_system=False,
    template="""{{ bos_token }}
{%- for message in messages %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}""",
)
DEEPSEEK = Style(
    name="DeepSeek, whose turn marks are not flagged as special",
    special=("<｜begin▁of▁sentence｜>",),
    plain=("<｜User｜>", "<｜Assistant｜>"),
    template="""<｜begin▁of▁sentence｜>
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{{ message['content'] }}{% endif %}
    {%- if message['role'] == 'user' %}{{ '<｜User｜>' + message['content'] }}{% endif %}
    {%- if message['role'] == 'assistant' %}{{ '<｜Assistant｜>' + message['content'] + eos_token }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}""",
)
PHI = Style(
    name="Phi-3, which puts its turn marks together",
    special=("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
    eats_space=True,
    template="""
{%- for message in messages %}
    {{- '<|' + message['role'] + '|>' + '\\n' + message['content'] + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}""",
)
GLM = Style(
    name="GLM-4, which puts its turn marks together in its data",
    special=("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    template="""
{%- for message in messages %}
{%- set role = 'observation' if message.role == 'tool' else message.role %}<|{{ role }}|>{{ message.name or '' }}
{{ message.content }}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}""",
)
STYLES = (HERMES, LLAMA, MISTRAL, GEMMA, DEEPSEEK, PHI, GLM)
