from pathlib import Path
from typing import Annotated

import typer

from tiergate.commands.options import LogFormat, LogLevel, Port


def worker(
    model: Annotated[Path | None, typer.Option(help="Folder of a Hugging Face checkpoint.")] = None,
    port: Port = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; another than loopback needs a key.")] = None,
    uds: Annotated[
        Path | None, typer.Option(help="Unix socket to listen on instead of host and port, for this user alone.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The model id that clients see; default: the folder's name.")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")] = None,
    pooling: Annotated[
        str | None, typer.Option(help="Embeddings are the last token's state (last) or the mean of all (mean).")
    ] = None,
    pool: Annotated[str | None, typer.Option(help="The pool that this replica belongs to.")] = None,
    adapter: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PATH", help="A PEFT adapter to load; may be repeated.")
    ] = None,
    artifacts_url: Annotated[
        str | None, typer.Option(help="The platform's store of adapters: s3://BUCKET/PREFIX or a folder.")
    ] = None,
    artifacts_dir: Annotated[
        Path | None, typer.Option(help="Where fetched adapters are kept; default: below ~/.cache/tiergate.")
    ] = None,
    artifacts_max_mb: Annotated[int | None, typer.Option(min=1, help="How much of them is kept there.")] = None,
    adapter_slots: Annotated[
        int | None, typer.Option(min=1, max=1024, help="How many adapters a step can use; more take turns.")
    ] = None,
    adapter_host_mb: Annotated[int | None, typer.Option(min=1, help="Memory for adapters that are in no slot.")] = None,
    max_model_len: Annotated[int | None, typer.Option(min=1, help="A shorter context window, in tokens.")] = None,
    max_logprobs: Annotated[
        int | None, typer.Option(min=-1, help="Most log-probabilities beside a token; -1: all of the vocabulary.")
    ] = None,
    max_num_seqs: Annotated[int | None, typer.Option(min=1, help="How many requests run at once.")] = None,
    max_waiting: Annotated[int | None, typer.Option(min=0, help="How many more may wait.")] = None,
    enterprise_headroom: Annotated[
        float | None, typer.Option(help="Part of the slots and of the KV cache kept free for priority 0.")
    ] = None,
    num_threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of torch.")] = None,
    device: Annotated[str | None, typer.Option(help="auto (a GPU where there is one), cpu or cuda.")] = None,
    eager: Annotated[bool | None, typer.Option("--eager", help="On a GPU, decode without CUDA graphs.")] = None,
    deterministic: Annotated[
        bool | None,
        typer.Option(
            "--deterministic/--no-deterministic",
            help="Logits to the last bit the same in any batch, where that is not so anyway; slower there.",
        ),
    ] = None,
    kv_memory_mb: Annotated[int | None, typer.Option(min=1, help="Memory of the KV cache.")] = None,
    public_prompts: Annotated[
        Path | None, typer.Option(help="Folder of system prompts (*.txt) whose cached blocks all tenants share.")
    ] = None,
    tool_parser: Annotated[
        str | None,
        typer.Option(help="How the model writes tool calls: auto (by its template), hermes, llama, pythonic, mistral."),
    ] = None,
    reasoning_parser: Annotated[
        str | None,
        typer.Option(help="How the model marks its thoughts: auto (by its template), none, think or mistral."),
    ] = None,
    allow_special_tokens: Annotated[
        bool | None,
        typer.Option(
            "--allow-special-tokens/--no-allow-special-tokens",
            help="Control tokens spelled in the text of /v1/completions count as such. Those in chats never do.",
        ),
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="File that counts tokens by tenant and hour; default: lost with the process.")
    ] = None,
    watermark_key_file: Annotated[
        Path | None, typer.Option(help="Mark what is sampled under the key in this file (CPU alone).")
    ] = None,
    watermark_gamma: Annotated[float | None, typer.Option(help="The share of tokens that are green.")] = None,
    watermark_delta: Annotated[float | None, typer.Option(help="What their logits gain.")] = None,
    register: Annotated[str | None, typer.Option(metavar="REDIS_URL", help="Send heartbeats there.")] = None,
    url: Annotated[str | None, typer.Option(help="Where gateways reach this worker; default: host and port.")] = None,
    api_key: Annotated[str | None, typer.Option(help="The worker key; better set TIERGATE_WORKER_KEY.")] = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
) -> None:
    """Serve one checkpoint over the OpenAI dialect.

    Every option but --log-level may be set as TIERGATE_WORKER_<OPTION>, too; several adapters with commas between.
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
