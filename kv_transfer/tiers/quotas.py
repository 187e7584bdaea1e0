"""Quotas on the blocks of a tier that each tenant may have."""

from collections import OrderedDict
from typing import Final

_TENANTS_MAX: Final = 65536


class Quotas:
    """Block quotas of tenants: `default`, or less for tenants with a lower limit. Limits are kept for the tenants
    that were limited last."""

    def __init__(self, default: int) -> None:
        assert default > 0
        self.default = default
        self._told: OrderedDict[str, int] = OrderedDict()

    def of(self, tenant: str) -> int:
        """Blocks that `tenant` may have."""
        return min(self.default, self._told.get(tenant, self.default))

    def tell(self, tenant: str, blocks: int | None) -> bool:
        """Limit `tenant` to `blocks` from now on; None lifts the limit. True when that changes the tenant's quota."""
        before = self.of(tenant)
        self._told.pop(tenant, None)
        if blocks is not None and blocks < self.default:
            self._told[tenant] = max(0, blocks)
            if len(self._told) > _TENANTS_MAX:
                self._told.popitem(last=False)
        return self.of(tenant) != before
