"""How many blocks of a tier each tenant may have."""

from collections import OrderedDict
from typing import Final

_TENANTS_MAX: Final = 65536


class Quotas:
    """`default` for everybody, less for those who were told so. What is told is kept for the tenants told of last."""

    def __init__(self, default: int) -> None:
        assert default > 0
        self.default = default
        self._told: OrderedDict[str, int] = OrderedDict()

    def of(self, tenant: str) -> int:
        """Blocks that `tenant` may have."""
        return min(self.default, self._told.get(tenant, self.default))

    def tell(self, tenant: str, blocks: int | None) -> bool:
        """From now on `tenant` may have `blocks`; None lifts what was told. True when that changes its quota."""
        before = self.of(tenant)
        self._told.pop(tenant, None)
        if blocks is not None and blocks < self.default:
            self._told[tenant] = max(0, blocks)
            if len(self._told) > _TENANTS_MAX:
                self._told.popitem(last=False)
        return self.of(tenant) != before
