"""The live view of the fleet, and draining its replicas."""

from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.workers import WorkerPatch, patch_worker
from gateway.clock import utc_now
from gateway.dashboard.fleet_stream import stream_fleet
from gateway.dashboard.fleet_view import view_fleet
from gateway.dashboard.forms import back_to, confirmation
from gateway.dashboard.pages import OPERATORS, FormPage, Page
from gateway.dashboard.rendering import render
from gateway.dashboard.typed import Typed
from gateway.dashboard.visitors import Visitor
from gateway.http.errors import NotFound
from gateway.services import Services
from router.fleet import Member, Pool

PATH = "/dashboard/fleet"


async def show_fleet(request: Request, services: Services, visitor: Visitor) -> Response:
    return render("fleet.html", visitor=visitor, pools=view_fleet(services), now=utc_now())


async def ask_drain(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    pool, member = _asked(request, services)
    text = (
        f"New requests go to the other replicas of {pool.name}, at every gateway; what runs here ends. It stays so, "
        "also when the replica is restarted at this address, until you take it back."
    )
    if _is_last(pool, member):
        text = f"It is the last replica of {pool.name} that takes requests: the pool will be unavailable. {text}"
    return _confirm(visitor, typed, member, title="Drain a replica", text=text, button="Drain")


async def drain(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    _, member = _asked(request, services)
    await patch_worker(member.worker_id, WorkerPatch(is_drained=True), visitor.principal, services)
    return back_to(PATH, "drained")


async def ask_undrain(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    pool, member = _asked(request, services)
    text = f"It gets its share of the requests of {pool.name} again."
    return _confirm(visitor, typed, member, title="Take a replica back", text=text, button="Take it back")


async def undrain(request: Request, services: Services, visitor: Visitor, typed: Typed) -> Response:
    _, member = _asked(request, services)
    await patch_worker(member.worker_id, WorkerPatch(is_drained=False), visitor.principal, services)
    return back_to(PATH, "undrained")


def _asked(request: Request, services: Services) -> tuple[Pool, Member]:
    found = services.registry.find(request.query_params.get("worker", ""))
    if found is None:
        raise NotFound("this replica is not there any more; the page Fleet shows who is")
    return found


def _is_last(pool: Pool, member: Member) -> bool:
    return {replica.member.worker_id for replica in pool.replicas.usable} == {member.worker_id}


def _confirm(visitor: Visitor, typed: Typed, member: Member, *, title: str, text: str, button: str) -> Response:
    return confirmation(
        visitor,
        typed,
        title=title,
        text=f"{member.worker_id} at {member.url}. {text}",
        button=button,
        back=PATH,
        back_label="Leave it as it is",
    )


PAGES = (
    Page("/fleet", show_fleet, who=OPERATORS, label="Fleet"),
    Page("/fleet/events", stream_fleet, who=OPERATORS),
    FormPage("/fleet/drain", ask_drain, drain, who=OPERATORS),
    FormPage("/fleet/undrain", ask_undrain, undrain, who=OPERATORS),
)
