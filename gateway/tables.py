"""Every table, for Alembic: importing this module fills `Base.metadata`."""

from gateway.adapters.models import Adapter, AdapterVariant
from gateway.audit.models import AuditEntry
from gateway.billing.models import Price
from gateway.database import Base
from gateway.keys.models import ApiKey
from gateway.models.models import Model
from gateway.tenants.models import Tenant
from gateway.tiers.models import Tier

__all__ = ["Adapter", "AdapterVariant", "ApiKey", "AuditEntry", "Base", "Model", "Price", "Tenant", "Tier"]
