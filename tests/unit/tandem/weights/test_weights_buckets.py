"""Buckets of every cloud: what is asked of them, and what their answers mean. The server is real, on loopback."""

from collections.abc import Callable, Iterator, Mapping

import pytest

from tandem.core.errors import TandemError
from tandem.weights import bucket_origin
from tandem.weights.bucket_origin import BucketOrigin
from tandem.weights.bucket_settings import CLOUDS, BucketSettings, bucket_settings
from tandem.weights.listing import File
from tandem.weights.source import parse_source
from tests.worlds.weights_stage import BUCKETS, SAS, TOKEN, Store, bucket_environment, s3_signature, serving

FILES = {"config.json": b"abcdef", "m-1.safetensors": bytes(9), "with space+%41.json": b"{}"}
SECRETS = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"),
    "gs": ("GOOGLE_BEARER_TOKEN",),
    "az": ("AZURE_STORAGE_SAS_TOKEN",),
}


@pytest.fixture
def store() -> Iterator[Store]:
    with serving(Store(dict(FILES))) as served:
        yield served


def opened(kind: str, store: Store, **changed: str) -> BucketOrigin:
    return BucketOrigin(parse_source(BUCKETS[kind]), bucket_environment(store.url) | changed)


def failure(run: Callable[[], object]) -> TandemError:
    with pytest.raises(TandemError) as caught:
        run()
    return caught.value


def streamed(
    origin: BucketOrigin, name: str = "config.json", offset: int = 0, tag: str = ""
) -> tuple[int, str, bytes]:
    """Where a stream begins, its tag and its bytes."""
    with origin.open(name, offset, tag) as stream:
        return stream.offset, stream.tag, b"".join(stream.chunks)


# ---- what is there ----


@pytest.mark.parametrize("kind", BUCKETS)
def test_a_bucket_is_listed_over_its_pages_and_read(kind: str, store: Store) -> None:
    """A folder that a console made is no file, and neither is a key that merely begins as the prefix does."""
    store.neighbours = ("llama/v10/config.json", "llama/other.json")
    origin = opened(kind, store)
    assert sorted(origin.files(), key=lambda each: each.name) == [
        File(name, len(data)) for name, data in FILES.items()
    ]
    for name, data in FILES.items():
        assert streamed(origin, name)[2] == data
    origin.close()


def test_a_bucket_without_a_prefix_is_listed_from_its_root(store: Store) -> None:
    found = BucketOrigin(parse_source("s3://bucket"), bucket_environment(store.url)).files()
    assert {each.name for each in found} == set(FILES)


@pytest.mark.parametrize("files", [3, 4])
def test_a_listing_has_a_bound(files: int, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_origin, "_FILES_MAX", 3)
    store.files = {f"{number}.json": b"" for number in range(files)}
    origin = opened("az", store)
    if files == 3:
        assert len(origin.files()) == 3
    else:
        error = failure(origin.files)
        assert (error.code, error.message) == ("bad_model", "az://container/llama/v1/ has over 3 files")


def test_a_listing_of_empty_pages_without_end_is_given_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_origin, "_LISTING_S", 0.2)
    more = b"<NextContinuationToken>0</NextContinuationToken>"
    store.listing = b"<ListBucketResult>" + more + b"</ListBucketResult>"
    error = failure(opened("s3", store).files)
    assert (error.code, error.message) == ("link_lost", "s3://bucket/llama/v1/: not listed within 0.2 s")


@pytest.mark.parametrize("kind", BUCKETS)
def test_a_listing_that_is_none_is_refused_by_name(kind: str, store: Store) -> None:
    store.listing = b"<html>log in here"
    error = failure(opened(kind, store).files)
    assert error.code == "bad_model"
    assert BUCKETS[kind] in error.message


# ---- a file goes on where it stopped ----


@pytest.mark.parametrize("kind", BUCKETS)
@pytest.mark.parametrize(
    ("offset", "same", "found"),
    [(0, True, (0, b"abcdef")), (2, True, (2, b"cdef")), (2, False, (0, b"abcdef")), (6, True, (6, b""))],
)
def test_a_file_goes_on_if_it_is_still_the_same(
    offset: int, same: bool, found: tuple[int, bytes], kind: str, store: Store
) -> None:
    origin = opened(kind, store)
    tag = streamed(origin)[1]
    assert tag
    begin, after, data = streamed(origin, "config.json", offset, tag if same else '"another"')
    assert ((begin, data), after) == (found, tag)


def test_without_a_tag_a_file_whose_checksum_is_known_goes_on(store: Store) -> None:
    begin, _, data = streamed(opened("s3", store), "config.json", 2)
    assert (begin, data) == (2, b"cdef")


@pytest.mark.parametrize("kind", BUCKETS)
def test_silence_in_the_middle_of_a_file_has_a_bound(
    kind: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_origin, "SILENCE_S", 0.2)
    store.files["m-1.safetensors"] = bytes(5000)
    store.silent = {"m-1.safetensors"}
    error = failure(lambda: streamed(opened(kind, store), "m-1.safetensors"))
    assert error.code == "link_lost"
    assert f"{BUCKETS[kind]}/m-1.safetensors" in error.message


# ---- credentials ----


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in SECRETS.items() for name in names])
def test_wrong_credentials_are_refused_and_not_told(kind: str, name: str, store: Store) -> None:
    origin = opened(kind, store, **{name: "sv=1&sig=wrong"})
    for run in (origin.files, lambda: streamed(origin)):
        error = failure(run)
        assert error.code == "bad_model"
        assert "access is refused (403)" in error.message
        assert "credentialsSecret" in error.message
        assert "wrong" not in error.message


@pytest.mark.parametrize("kind", BUCKETS)
def test_a_public_bucket_is_asked_without_credentials(kind: str, store: Store) -> None:
    endpoints = {name: bucket_environment(store.url).get(name, "") for name in CLOUDS[kind].endpoints}
    origin = BucketOrigin(parse_source(BUCKETS[kind]), endpoints | {"AZURE_STORAGE_ACCOUNT_NAME": "account"})
    assert failure(origin.files).code == "bad_model"
    store.public = True
    assert len(origin.files()) == len(FILES)
    for target, headers in store.requests:
        assert "authorization" not in headers
        assert "sig=" not in target


def test_a_session_s_token_is_sent_and_signed(store: Store) -> None:
    opened("s3", store, AWS_SESSION_TOKEN="session").files()
    headers = store.requests[0][1]
    assert headers["x-amz-security-token"] == "session"
    assert "x-amz-security-token" in headers["authorization"].partition("SignedHeaders=")[2]


def test_the_signature_that_requests_are_judged_by_is_that_of_the_published_example() -> None:
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    headers = {
        "host": "examplebucket.s3.amazonaws.com",
        "x-amz-content-sha256": empty,
        "x-amz-date": "20130524T000000Z",
        "authorization": "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        "SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature=?",
    }
    found = s3_signature("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "/?max-keys=2&prefix=J", headers)
    assert found == "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"


def test_an_account_of_azure_stands_in_the_environment_or_in_the_source(store: Store) -> None:
    known = {"AZURE_STORAGE_ENDPOINT": f"{store.url}/account", "AZURE_STORAGE_SAS_TOKEN": f"sig={SAS}"}
    error = failure(lambda: BucketOrigin(parse_source("az://container/llama/v1"), known))
    assert error.code == "bad_model"
    assert "Account must be specified" in error.message
    named = parse_source("abfss://container@account.dfs.core.windows.net/llama/v1")
    assert len(BucketOrigin(named, known).files()) == len(FILES)


# ---- errors ----


@pytest.mark.parametrize("kind", BUCKETS)
@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (301, "bad_model", "redirect"),
        (400, "bad_model", "status 400"),
        (401, "bad_model", "access is refused (401)"),
        (404, "bad_model", "is missing (404)"),
        (429, "link_lost", "status 429"),
        (500, "link_lost", "status 500"),
        (503, "link_lost", "status 503"),
    ],
)
def test_what_may_get_better_is_told_from_what_will_not(
    status: int, code: str, says: str, kind: str, store: Store
) -> None:
    store.status = {"": status, "config.json": status}
    origin = opened(kind, store)
    for run, name in ((origin.files, ""), (lambda: streamed(origin, "config.json", 3), "config.json")):
        error = failure(run)
        assert error.code == code
        assert says in error.message
        assert error.message.startswith(f"{BUCKETS[kind]}/{name}")
        assert SAS not in error.message
        assert TOKEN not in error.message


@pytest.mark.parametrize("kind", BUCKETS)
def test_a_store_that_cannot_be_reached_may_be_later(kind: str) -> None:
    with serving(Store({})) as gone:
        origin = opened(kind, gone)
    for run in (origin.files, lambda: streamed(origin)):
        error = failure(run)
        assert error.code == "link_lost"
        assert "onnection refused" in error.message
        assert SAS not in error.message


def test_a_file_of_credentials_that_is_none_is_told() -> None:
    error = failure(
        lambda: BucketOrigin(parse_source("gs://b/m"), {"GOOGLE_APPLICATION_CREDENTIALS": "/no/such.json"})
    )
    assert error.code == "bad_model"
    assert "gs://b/m/" in error.message
    assert "credentialsSecret" in error.message


# ---- settings ----

AWS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s"}
HOSTED = {"AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"}


@pytest.mark.parametrize(
    ("scheme", "environment", "config", "plain"),
    [
        ("s3", {}, HOSTED | {"AWS_SKIP_SIGNATURE": "true"}, False),
        ("s3", AWS | {"AWS_SESSION_TOKEN": "", "OTHER": "x"}, HOSTED | AWS, False),
        ("s3", {"AWS_WEB_IDENTITY_TOKEN_FILE": "/t"}, HOSTED | {"AWS_WEB_IDENTITY_TOKEN_FILE": "/t"}, False),
        ("s3", {"AWS_SKIP_SIGNATURE": "false"}, HOSTED | {"AWS_SKIP_SIGNATURE": "false"}, False),
        ("s3", AWS | {"AWS_ENDPOINT_URL": "http://m:9000/"}, AWS | {"AWS_ENDPOINT_URL_S3": "http://m:9000"}, True),
        (
            "s3",
            AWS | {"AWS_ENDPOINT_URL": "http://other", "AWS_ENDPOINT_URL_S3": "https://m"},
            AWS | {"AWS_ENDPOINT_URL_S3": "https://m"},
            False,
        ),
        (
            "gs",
            {"GOOGLE_BASE_URL": "http://g", **AWS},
            {"GOOGLE_BASE_URL": "http://g", "GOOGLE_SKIP_SIGNATURE": "true"},
            True,
        ),
        ("gs", {"GOOGLE_APPLICATION_CREDENTIALS": "/k"}, {"GOOGLE_APPLICATION_CREDENTIALS": "/k"}, False),
        (
            "az",
            {"AZURE_ENDPOINT": "https://z"},
            {"AZURE_STORAGE_ENDPOINT": "https://z", "AZURE_SKIP_SIGNATURE": "true"},
            False,
        ),
        (
            "az",
            {"AZURE_CLIENT_SECRET": "c", "AZURE_CLIENT_ID": "i"},
            {"AZURE_CLIENT_SECRET": "c", "AZURE_CLIENT_ID": "i"},
            False,
        ),
    ],
)
def test_settings_are_those_of_the_cloud_s_own_variables(
    scheme: str, environment: Mapping[str, str], config: Mapping[str, str], plain: bool
) -> None:
    """TLS is left out only where the address of an endpoint says so."""
    assert bucket_settings(scheme, environment) == BucketSettings(config, plain)


@pytest.mark.parametrize("kind", BUCKETS)
def test_every_variable_is_one_that_the_library_knows(kind: str) -> None:
    """It refuses others by name, and what is wrong with the value of those that it knows otherwise."""
    cloud = CLOUDS[kind]
    for name in (*cloud.endpoints, *cloud.credentials, *cloud.others, cloud.unsigned):
        said = ""
        try:
            BucketOrigin(parse_source(BUCKETS[kind]), {"AZURE_STORAGE_ACCOUNT_NAME": "account", name: "true"})
        except TandemError as error:
            said = error.message
        assert "is not valid for store" not in said


def test_of_two_regions_the_one_that_is_not_the_default_counts(store: Store) -> None:
    opened("s3", store, AWS_REGION="us-east-1", AWS_DEFAULT_REGION="eu-west-1").files()
    error = failure(opened("s3", store, AWS_DEFAULT_REGION="eu-west-1").files)
    assert "access is refused" in error.message
    assert "/eu-west-1/s3/aws4_request" in store.requests[-1][1]["authorization"]
