"""Every table, for Alembic: importing this module fills `Base.metadata`."""

from gateway.database import Base
from gateway.domain.adapters.models import Adapter, AdapterVariant, Artifact
from gateway.domain.audit.models import AuditEntry
from gateway.domain.invoices.models import BillingAccount, CreditEntry, Invoice, InvoiceLine
from gateway.domain.keys.models import ApiKey
from gateway.domain.locks import Lock
from gateway.domain.models.models import Model
from gateway.domain.prices.models import Discount, Price, Surcharge
from gateway.domain.tenants.models import Tenant
from gateway.domain.tiers.models import Tier
from gateway.domain.webhooks.models import Delivery, Lease, Webhook

__all__ = [
    "Adapter",
    "AdapterVariant",
    "ApiKey",
    "Artifact",
    "AuditEntry",
    "Base",
    "BillingAccount",
    "CreditEntry",
    "Delivery",
    "Discount",
    "Invoice",
    "InvoiceLine",
    "Lease",
    "Lock",
    "Model",
    "Price",
    "Surcharge",
    "Tenant",
    "Tier",
    "Webhook",
]
