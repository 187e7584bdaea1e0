"""Names of blocks carry the tenant: whatever two tenants ask and whatever salts clients choose, none is equal."""

from hypothesis import given
from hypothesis import strategies as st

from router.api.auth import Caller, tenant_salt
from router.api.request_spec import salt_of
from tandem.core.kv import chain_names, pack_tokens, quota_tenant, tenant_root

KEY = b"0123456789abcdef"
ROOT = b"r" * 16

tenants = st.text(min_size=1, max_size=8)
salts = st.none() | st.text(min_size=1, max_size=8)


def names(tenant: str, salt: str | None, tokens: list[int]) -> tuple[bytes, ...]:
    caller = Caller(tenant, tenant_salt(KEY, tenant))
    return chain_names(tenant_root(ROOT, salt_of(caller, salt)), pack_tokens(tokens), 4)


@given(tenants, tenants, salts, salts, st.lists(st.integers(0, 9), min_size=4, max_size=32))
def test_two_tenants_never_have_a_name_in_common(
    one: str, other: str, salt: str | None, other_salt: str | None, tokens: list[int]
) -> None:
    shared = set(names(one, salt, tokens)) & set(names(other, other_salt, tokens))
    if (one, salt) == (other, other_salt):
        assert len(shared) == len(tokens) // 4
    else:
        assert not shared


@given(tenants, tenants, salts, salts)
def test_a_tenant_pays_for_all_of_its_salts_and_for_nobody_elses(
    one: str, other: str, salt: str | None, other_salt: str | None
) -> None:
    paying, paid = (
        quota_tenant(salt_of(Caller(tenant, tenant_salt(KEY, tenant)), chosen))
        for tenant, chosen in ((one, salt), (other, other_salt))
    )
    assert (paying == paid) == (one == other)
