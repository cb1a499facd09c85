"""Tenants: all of them for the platform's administrators, its own for a tenant."""

from gateway.dashboard.pages import AnyPage
from gateway.dashboard.tenants import ending, listing, making, one, sessions

PAGES: tuple[AnyPage, ...] = (*listing.PAGES, *making.PAGES, *one.PAGES, *ending.PAGES, *sessions.PAGES)
