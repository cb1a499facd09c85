"""`tiergate router train|evaluate|calibrate`: trains and evaluates the complexity score on graded prompts."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tiergate.admin.options import DEFAULT_BASE_URL, AdminKey, AsJson, BaseUrl, connect
from tiergate.admin.output import show_row, show_rows
from tiergate.failure import Failure

app = typer.Typer(
    name="router", help="Train, evaluate and calibrate the score that decides which prompts go to the large model."
)

Data = Annotated[
    list[Path],
    typer.Option("--data", help="Graded prompts, one JSON object per line (docs/routing.md); may be repeated."),
]
WeightsFile = Annotated[
    Path | None, typer.Option("--weights", help="A file of weights; default: those that are shipped.")
]
Share = Annotated[
    float | None,
    typer.Option("--large-share", min=0.0, max=1.0, help="The wanted share of calls to the large model, 0 to 1."),
]
Cost = Annotated[
    float | None,
    typer.Option(
        "--cost", min=0.0, help="The wanted cost of a thousand requests instead of a share; needs the next two options."
    ),
]
SmallCost = Annotated[float | None, typer.Option(min=0.0, help="The cost of a thousand requests to the small model.")]
LargeCost = Annotated[float | None, typer.Option(min=0.0, help="The cost of a thousand requests to the large model.")]


@app.command("train")
def train(
    data: Data,
    out: Annotated[Path, typer.Option("--out", help="The file of weights to write.")] = Path("weights.bin"),
    note: Annotated[
        str, typer.Option("--note", help="A description of the data, kept in the file; default: the files' names.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Train weights on graded prompts."""
    from router.weights import pack_weights
    from tiergate.routing.evaluate import qualities

    try:
        from tiergate.routing.train import train as train_on
    except ImportError as error:
        raise Failure(f"training needs scikit-learn: pip install 'tiergate[train]' ({error})") from None
    graded = _read(data)
    trained = train_on(graded, note=note or ", ".join(path.name for path in data))
    file = pack_weights(trained.content)
    try:
        out.write_bytes(file)
    except OSError as error:
        raise Failure(f"{out}: {error}") from None
    if not as_json:
        typer.echo(f"{out}: {len(file):,} bytes, learnt from {len(graded.rows):,} prompts; on prompts held out:")
    show_rows(qualities(graded, trained.scores), as_json=as_json)


@app.command("evaluate")
def evaluate(data: Data, weights: WeightsFile = None, as_json: AsJson = False) -> None:
    """Show the quality of weights on graded prompts by source, with 95 % confidence intervals."""
    from tiergate.routing.evaluate import qualities, score_rows

    graded = _read(data)
    show_rows(qualities(graded, score_rows(graded, _weights(weights))), as_json=as_json)


@app.command("calibrate")
def calibrate(
    data: Data,
    large_share: Share = None,
    cost: Cost = None,
    small_cost: SmallCost = None,
    large_cost: LargeCost = None,
    weights: WeightsFile = None,
    tier: Annotated[
        list[str] | None,
        typer.Option("--tier", help="Set this tier's threshold on a running platform; may be repeated."),
    ] = None,
    base_url: BaseUrl = DEFAULT_BASE_URL,
    admin_key: AdminKey = "",
    as_json: AsJson = False,
) -> None:
    """Find the threshold that sends a given share of the prompts to the large model, or meets a given cost."""
    from tiergate.routing.evaluate import cost_at, share_for, threshold_at

    if (large_share is None) == (cost is None):
        raise Failure("give either --large-share or --cost")
    if cost is not None:
        if small_cost is None or large_cost is None:
            raise Failure("--cost needs --small-cost and --large-cost, of a thousand requests each")
        large_share = share_for(cost, small_cost=small_cost, large_cost=large_cost)
    assert large_share is not None
    row: dict[str, Any] = threshold_at(_read(data), _weights(weights), large_share)
    if small_cost is not None and large_cost is not None:
        row["cost"] = cost_at(row["large_share"], small_cost=small_cost, large_cost=large_cost)
    if tier:
        with connect(base_url, admin_key) as client:
            for name in tier:
                client.patch(f"/tiers/{name}", {"complexity_threshold": row["threshold"], "large_share": None})
        row["applied_to"] = ", ".join(tier)
    show_row(row, as_json=as_json)


def _read(data: list[Path]) -> Any:
    from tiergate.routing.graded import read_graded

    return read_graded(data)


def _weights(path: Path | None) -> Any:
    from router.complexity import shipped_weights
    from router.errors import BadWeights
    from router.weights import read_weights

    if path is None:
        return shipped_weights()
    try:
        return read_weights(path.read_bytes())
    except (OSError, BadWeights) as error:
        raise Failure(f"{path}: {error}") from None
