"""End users that have limits by name."""

from gateway.dashboard.pages import AnyPage
from gateway.dashboard.users import listing, making

PAGES: tuple[AnyPage, ...] = (*listing.PAGES, *making.PAGES)
