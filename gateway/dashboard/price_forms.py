"""A new price, surcharge or discount: typed, previewed on past usage, and then written."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin import prices as api
from gateway.billing.previews import AnyTerms, as_if_since, preview, with_change
from gateway.clock import utc_now
from gateway.dashboard.amounts import shown_amount, typed_basis_points, typed_nanousd
from gateway.dashboard.forms import back_to
from gateway.dashboard.numbers import places_of
from gateway.dashboard.pages import OPERATORS, FormPage
from gateway.dashboard.price_rows import read_book
from gateway.dashboard.prices import PATH
from gateway.dashboard.rendering import render
from gateway.dashboard.typed import Form, Typed
from gateway.dashboard.visitors import Visitor
from gateway.dashboard.zones import typed_moment
from gateway.domain.catalog import PriceRows, read_price_rows
from gateway.domain.prices.price_book import BATCHES, DiscountTerms, PriceTerms, SurchargeTerms
from gateway.http.errors import Conflict, InvalidRequest
from gateway.metering.windows import Window
from gateway.services import Services
from protocol.ids import new_id

LOOK_BACK = timedelta(days=30)
_CACHED_ANSWER = "cached_answer_basis_points"
_MILLION = 10**6
AnyDraft = api.PriceDraft | api.SurchargeDraft | api.DiscountDraft
_TOKEN_FIELDS = ("prompt_nanousd", "cached_prompt_nanousd", "completion_nanousd", "token_nanousd")


@dataclass(frozen=True)
class PriceForm:
    """kind: price | surcharge | discount"""

    kind: str
    draft: type[AnyDraft]

    async def show(self, request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
        standing = await _standing(services, request.query_params.get("model", "")) if self.kind == "price" else {}
        catalog = services.catalog.current
        return render(
            "price_new.html",
            visitor=visitor,
            form=Form(typed, standing),
            kind=self.kind,
            models=sorted(catalog.models),
            tiers=sorted(catalog.tiers),
        )

    async def act(self, request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
        draft, now = self._draft(typed, visitor), utc_now()
        async with services.sessions() as session:
            rows = await read_price_rows(session)
        newest = max((row.version for each in rows for row in each), default="none")
        if typed.text("confirmed") != "yes":
            return await self._preview(services, visitor, typed, rows, draft, newest=newest, now=now)
        if typed.text("newest") != newest:
            raise Conflict("the price book was changed while you looked; look at what the change comes to now")
        await self._write(services, visitor, draft)
        if draft.is_correction and draft.valid_from is not None:
            return back_to(f"{PATH}/rerate?start={int(draft.valid_from.timestamp())}", "corrected")
        return back_to(PATH, "priced")

    def _draft(self, typed: Typed, visitor: Visitor) -> AnyDraft:
        fields: dict[str, Any] = {
            "valid_from": typed_moment(typed.text("valid_from"), visitor.zone, param="valid_from"),
            "is_correction": typed.is_checked("is_correction"),
        }
        if self.kind == "discount":
            fields["tier"] = typed.text("tier") or None
            fields["basis_points"] = typed_basis_points(typed.text("basis_points"), param="basis_points")
        else:
            fields["model_id"] = typed.text("model_id")
        if self.kind == "surcharge":
            fields["adapter_id"] = _adapter(typed.text("adapter_id"), visitor)
        for name in _TOKEN_FIELDS:
            if typed.text(name):
                fields[name] = typed_nanousd(typed.text(name), param=name, per=_MILLION)
        if typed.text("minimum_nanousd"):
            fields["minimum_nanousd"] = typed_nanousd(typed.text("minimum_nanousd"), param="minimum_nanousd")
        if typed.text(_CACHED_ANSWER):
            fields[_CACHED_ANSWER] = typed_basis_points(typed.text(_CACHED_ANSWER), param=_CACHED_ANSWER)
        return self.draft.model_validate(fields)

    async def _preview(
        self,
        services: Services,
        visitor: Visitor,
        typed: Typed,
        rows: PriceRows,
        draft: AnyDraft,
        *,
        newest: str,
        now: datetime,
    ) -> Response:
        since = draft.valid_from or now
        if since < now and not draft.is_correction:
            raise InvalidRequest(
                "this lies in the past, where usage is priced already; tick “correction” if you mean it",
                param="valid_from",
            )
        terms = _terms(draft, since, now)
        if since < now:
            book, window = with_change(rows, terms), Window(since, now)
        else:
            window = Window(now - LOOK_BACK, now)
            book = as_if_since(rows, terms, window.start)
        found = await preview(services.rerating, book, window)
        return render(
            "price_preview.html",
            visitor=visitor,
            form=Form(typed),
            kind=self.kind,
            draft=draft,
            since=since,
            is_past=since < now,
            found=found,
            newest=newest,
            differences=found.by_tenant.most_common(),
            places=places_of([found.old_nanousd, found.new_nanousd, *found.by_tenant.values()]),
            carried={name: value for name, value in typed.shown().items() if name not in ("confirmed", "newest")},
        )

    async def _write(self, services: Services, visitor: Visitor, draft: AnyDraft) -> None:
        match draft:
            case api.PriceDraft():
                await api.post_price(draft, visitor.principal, services)
            case api.SurchargeDraft():
                await api.post_surcharge(draft, visitor.principal, services)
            case api.DiscountDraft():
                await api.post_discount(draft, visitor.principal, services)


async def _standing(services: Services, model_id: str) -> dict[str, str]:
    """The model's price in force, to start the form with."""
    now = utc_now()
    book = await read_book(services.sessions)
    for each in book.prices:
        if each.row.model_id == model_id and each.is_in_force(now):
            tokens = {name: getattr(each.row, name) for name in _TOKEN_FIELDS[:3]}
            return {
                "model_id": model_id,
                "minimum_nanousd": shown_amount(each.row.minimum_nanousd),
                _CACHED_ANSWER: f"{each.row.cached_answer_basis_points / 100:g}",
                **{name: shown_amount(nanousd * _MILLION) for name, nanousd in tokens.items()},
            }
    return {"model_id": model_id}


def _terms(draft: AnyDraft, since: datetime, now: datetime) -> AnyTerms:
    version = str(new_id(now))
    match draft:
        case api.PriceDraft():
            cached = draft.prompt_nanousd if draft.cached_prompt_nanousd is None else draft.cached_prompt_nanousd
            return PriceTerms(
                version,
                draft.model_id,
                draft.prompt_nanousd,
                cached,
                draft.completion_nanousd,
                draft.minimum_nanousd,
                since,
                draft.cached_answer_basis_points,
            )
        case api.SurchargeDraft():
            return SurchargeTerms(version, draft.model_id, draft.adapter_id, draft.token_nanousd, since)
        case api.DiscountDraft():
            return DiscountTerms(version, draft.tier or BATCHES, draft.basis_points, since)


def _adapter(asked: str, visitor: Visitor) -> UUID | None:
    """The adapter's id, by name or id. Raises InvalidRequest if there is none, or if several tenants have this name."""
    if not asked:
        return None
    ids = [known for known, name in visitor.names.adapters.items() if asked in (known, name)]
    if not ids:
        raise InvalidRequest("there is no such adapter", param="adapter_id")
    if len(ids) > 1:
        raise InvalidRequest("several tenants have an adapter of this name; write its id", param="adapter_id")
    return UUID(ids[0])


_FORMS = (
    ("/prices/new", PriceForm("price", api.PriceDraft)),
    ("/prices/new-surcharge", PriceForm("surcharge", api.SurchargeDraft)),
    ("/prices/new-discount", PriceForm("discount", api.DiscountDraft)),
)
PAGES = tuple(FormPage(path, form.show, form.act, who=OPERATORS) for path, form in _FORMS)
