"""What the environment says about buckets of Amazon S3 and its like, Google Cloud Storage and Azure. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True)
class Cloud:
    """Environment variables of one cloud. `unsigned` says that requests carry no credentials."""

    endpoints: tuple[str, ...]
    """Where requests go instead of the cloud's own address; the first that is set counts."""
    credentials: tuple[str, ...]
    """Each says that there are credentials."""
    others: tuple[str, ...]
    unsigned: str


CLOUDS: Final[Mapping[str, Cloud]] = MappingProxyType(
    {
        "s3": Cloud(
            ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
            (
                "AWS_ACCESS_KEY_ID",
                "AWS_WEB_IDENTITY_TOKEN_FILE",
                "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            ),
            (
                "AWS_SECRET_ACCESS_KEY",
                "AWS_SESSION_TOKEN",
                "AWS_REGION",
                "AWS_DEFAULT_REGION",
                "AWS_ROLE_ARN",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
                "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
            ),
            "AWS_SKIP_SIGNATURE",
        ),
        "gs": Cloud(
            ("GOOGLE_BASE_URL",),
            (
                "GOOGLE_APPLICATION_CREDENTIALS",
                "GOOGLE_SERVICE_ACCOUNT",
                "GOOGLE_SERVICE_ACCOUNT_PATH",
                "GOOGLE_SERVICE_ACCOUNT_KEY",
                "GOOGLE_BEARER_TOKEN",
            ),
            (),
            "GOOGLE_SKIP_SIGNATURE",
        ),
        "az": Cloud(
            ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
            (
                "AZURE_STORAGE_ACCOUNT_KEY",
                "AZURE_STORAGE_ACCESS_KEY",
                "AZURE_STORAGE_SAS_TOKEN",
                "AZURE_STORAGE_SAS_KEY",
                "AZURE_STORAGE_TOKEN",
                "AZURE_CLIENT_SECRET",
                "AZURE_FEDERATED_TOKEN_FILE",
            ),
            ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_AUTHORITY_HOST"),
            "AZURE_SKIP_SIGNATURE",
        ),
    }
)
"""By the scheme of `model.source`."""


@dataclass(frozen=True)
class BucketSettings:
    """Settings of a client, by the names of their environment variables. `plain` allows an endpoint without TLS."""

    config: Mapping[str, str]
    plain: bool


def bucket_settings(scheme: str, environment: Mapping[str, str]) -> BucketSettings:
    """The settings for a bucket of `scheme`, one of `CLOUDS`. Variables that are empty are as if they were not set.
    Without credentials a bucket must be public, unless the cloud's variable `…_SKIP_SIGNATURE` says false: then the
    node's own identity is asked for."""
    cloud = CLOUDS[scheme]
    names = (*cloud.credentials, *cloud.others, cloud.unsigned)
    config = {name: environment[name] for name in names if environment.get(name)}
    endpoint = next((environment[name] for name in cloud.endpoints if environment.get(name)), "")
    if endpoint:
        config[cloud.endpoints[0]] = endpoint.rstrip("/")
    elif scheme == "s3":
        config.setdefault("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    if not any(name in config for name in cloud.credentials):
        config.setdefault(cloud.unsigned, "true")
    return BucketSettings(config, endpoint.startswith("http://"))
