from pathlib import Path
from typing import Annotated

import typer

from tiergate.commands.options import LogFormat, LogLevel, Port


def worker(
    model: Annotated[Path | None, typer.Option(help="The folder of a Hugging Face checkpoint.")] = None,
    port: Port = None,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on; any but loopback needs a worker key.")
    ] = None,
    uds: Annotated[
        Path | None, typer.Option(help="A Unix socket to listen on instead of host and port, for this user only.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The model id that clients see; default: the folder's name.")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")] = None,
    pooling: Annotated[
        str | None,
        typer.Option(
            help="How embeddings are made: from the last token's state (last) or the mean of all states (mean)."
        ),
    ] = None,
    pool: Annotated[str | None, typer.Option(help="The pool that this replica belongs to.")] = None,
    adapter: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PATH", help="A PEFT adapter to load; may be repeated.")
    ] = None,
    artifacts_url: Annotated[
        str | None, typer.Option(help="The platform's store of adapters: s3://BUCKET/PREFIX or a folder.")
    ] = None,
    artifacts_dir: Annotated[
        Path | None, typer.Option(help="Where fetched adapters are kept; default: a folder below ~/.cache/tiergate.")
    ] = None,
    artifacts_max_mb: Annotated[
        int | None, typer.Option(min=1, help="The most megabytes of fetched adapters to keep there.")
    ] = None,
    adapter_slots: Annotated[
        int | None, typer.Option(min=1, max=1024, help="How many adapters one step can use; further ones take turns.")
    ] = None,
    adapter_host_mb: Annotated[
        int | None, typer.Option(min=1, help="Host memory, in megabytes, for adapters that are in no slot.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="A context window shorter than the model's, in tokens.")
    ] = None,
    max_logprobs: Annotated[
        int | None,
        typer.Option(
            min=-1, help="The most log-probabilities per token that requests may ask for; -1: the whole vocabulary."
        ),
    ] = None,
    max_num_seqs: Annotated[int | None, typer.Option(min=1, help="How many requests run at the same time.")] = None,
    max_waiting: Annotated[int | None, typer.Option(min=0, help="How many further requests may wait.")] = None,
    enterprise_headroom: Annotated[
        float | None, typer.Option(help="The share of slots and KV cache that is kept free for priority 0.")
    ] = None,
    num_threads: Annotated[int | None, typer.Option(min=1, help="The number of torch's CPU threads.")] = None,
    device: Annotated[str | None, typer.Option(help="auto (a GPU if there is one), cpu or cuda.")] = None,
    eager: Annotated[bool | None, typer.Option("--eager", help="On a GPU, decode without CUDA graphs.")] = None,
    deterministic: Annotated[
        bool | None,
        typer.Option(
            "--deterministic/--no-deterministic",
            help="Make logits bit-identical in any batch; slower where they are not so anyway.",
        ),
    ] = None,
    kv_memory_mb: Annotated[int | None, typer.Option(min=1, help="Memory for the KV cache, in megabytes.")] = None,
    public_prompts: Annotated[
        Path | None, typer.Option(help="A folder of system prompts (*.txt) whose cached blocks all tenants share.")
    ] = None,
    tool_parser: Annotated[
        str | None,
        typer.Option(
            help="How the model writes tool calls: auto (by its template), hermes, llama, pythonic or mistral."
        ),
    ] = None,
    reasoning_parser: Annotated[
        str | None,
        typer.Option(help="How the model marks its reasoning: auto (by its template), none, think or mistral."),
    ] = None,
    allow_special_tokens: Annotated[
        bool | None,
        typer.Option(
            "--allow-special-tokens/--no-allow-special-tokens",
            help="Treat control tokens spelled in the text of /v1/completions as such. In chats they never are.",
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="The file that counts tokens by tenant and hour; without it counts are lost with the process."
        ),
    ] = None,
    watermark_key_file: Annotated[
        Path | None, typer.Option(help="Watermark sampled text with the key in this file (CPU only).")
    ] = None,
    watermark_gamma: Annotated[float | None, typer.Option(help="The share of the vocabulary that is green.")] = None,
    watermark_delta: Annotated[float | None, typer.Option(help="The bias added to the logits of green tokens.")] = None,
    register: Annotated[str | None, typer.Option(metavar="REDIS_URL", help="The Redis to send heartbeats to.")] = None,
    url: Annotated[
        str | None, typer.Option(help="The URL at which gateways reach this worker; default: by host and port.")
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="The worker key; TIERGATE_WORKER_KEY is safer.")] = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
) -> None:
    """Serve one checkpoint over an OpenAI-compatible API.

    Every option except --log-level may also be set as TIERGATE_WORKER_<OPTION>; separate several adapters by commas.
    """
    from tiergate.commands.logs import start_logging
    from tiergate.failure import Failure
    from worker.log_context import current
    from worker.main import run
    from worker.settings import SettingsError, load_settings

    start_logging(log_level, log_format, context=current)
    try:
        settings = load_settings(
            model=model,
            port=port,
            host=host,
            uds=uds,
            name=name,
            dtype=dtype,
            pooling=pooling,
            pool=pool,
            adapters=adapter or None,
            artifacts_url=artifacts_url,
            artifacts_dir=artifacts_dir,
            artifacts_max_mb=artifacts_max_mb,
            adapter_slots=adapter_slots,
            adapter_host_mb=adapter_host_mb,
            max_model_len=max_model_len,
            max_logprobs=max_logprobs,
            max_num_seqs=max_num_seqs,
            max_waiting=max_waiting,
            enterprise_headroom=enterprise_headroom,
            num_threads=num_threads,
            device=device,
            eager=eager,
            deterministic=deterministic,
            kv_memory_mb=kv_memory_mb,
            ledger=ledger,
            watermark_key_file=watermark_key_file,
            watermark_gamma=watermark_gamma,
            watermark_delta=watermark_delta,
            public_prompts=public_prompts,
            register_url=register,
            tool_parser=tool_parser,
            reasoning_parser=reasoning_parser,
            allow_special_tokens=allow_special_tokens,
            url=url,
            api_key=api_key,
        )
    except SettingsError as error:
        raise Failure(str(error)) from error
    raise typer.Exit(run(settings))
