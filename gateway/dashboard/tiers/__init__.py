"""Tiers: seen by all administrators, made and changed by the platform's."""

from gateway.dashboard.pages import AnyPage
from gateway.dashboard.tiers import listing, making, retiring

PAGES: tuple[AnyPage, ...] = (*making.PAGES, *listing.PAGES, *retiring.PAGES)
