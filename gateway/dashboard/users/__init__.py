"""End users with limits of their own."""

from gateway.dashboard.pages import AnyPage
from gateway.dashboard.users import listing, making

PAGES: tuple[AnyPage, ...] = (*listing.PAGES, *making.PAGES)
