"""API keys: a tenant's administrators see its own, platform administrators see all."""

from gateway.dashboard.keys import ending, listing, making, once, one
from gateway.dashboard.pages import AnyPage

PAGES: tuple[AnyPage, ...] = (*listing.PAGES, *making.PAGES, *one.PAGES, *once.PAGES, *ending.PAGES)
