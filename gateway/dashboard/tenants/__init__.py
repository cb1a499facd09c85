"""Tenants: platform administrators see all of them, a tenant sees itself."""

from gateway.dashboard.pages import AnyPage
from gateway.dashboard.tenants import ending, listing, making, one, sessions

PAGES: tuple[AnyPage, ...] = (*listing.PAGES, *making.PAGES, *one.PAGES, *ending.PAGES, *sessions.PAGES)
