"""Every table, for Alembic: importing this module fills `Base.metadata`."""

from gateway.database import Base
from gateway.domain.adapters.models import Adapter, AdapterVariant, Artifact
from gateway.domain.answer_caching.models import CachePolicy
from gateway.domain.audit.models import AuditEntry, AuditHead
from gateway.domain.batches.models import Batch, BatchResult
from gateway.domain.erasures.models import Erasure
from gateway.domain.files.models import StoredFile
from gateway.domain.guardrails.models import Guardrail
from gateway.domain.invoices.models import BillingAccount, CreditEntry, Invoice, InvoiceLine
from gateway.domain.keys.models import ApiKey
from gateway.domain.locks import Lock
from gateway.domain.models.models import Model
from gateway.domain.people.models import Person, SpentLogin
from gateway.domain.prices.models import Discount, Price, Surcharge
from gateway.domain.sessions.models import SessionPolicy
from gateway.domain.tenants.models import EndUser, Tenant
from gateway.domain.tiers.models import Tier
from gateway.domain.tools.models import ServerTool
from gateway.domain.visits.models import Visit
from gateway.domain.webhooks.models import Delivery, Lease, Webhook

__all__ = [
    "Adapter",
    "AdapterVariant",
    "ApiKey",
    "Artifact",
    "AuditEntry",
    "AuditHead",
    "Base",
    "Batch",
    "BatchResult",
    "BillingAccount",
    "CachePolicy",
    "CreditEntry",
    "Delivery",
    "Discount",
    "EndUser",
    "Erasure",
    "Guardrail",
    "Invoice",
    "InvoiceLine",
    "Lease",
    "Lock",
    "Model",
    "Person",
    "Price",
    "ServerTool",
    "SessionPolicy",
    "SpentLogin",
    "StoredFile",
    "Surcharge",
    "Tenant",
    "Tier",
    "Visit",
    "Webhook",
]
