"""What Tandem deploys on Serve: an application for each revision of a service, one of routers for all services."""

from collections.abc import Mapping
from typing import Any, Final

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, GangSchedulingConfig

from tandem.apps.ray.placing import replica_times
from tandem.apps.ray.policy import WantedReplicas
from tandem.apps.ray.router_replica import RouterPlan, RouterReplica
from tandem.apps.ray.serving import ROUTER, ROUTES, ActorOptions, DeploymentPlan, RevisionApp
from tandem.apps.ray.worker_replica import WorkerPlan, WorkerReplica

_ONE_LOOP: Final = {"RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0"}
_NO_INGRESS: Final = {"RAY_SERVE_ENABLE_HA_PROXY": "0"}
"""The first deployment of an application counts as its ingress, with a server of its own that drains for 30 s."""
_ROUTER_TIMES_S: Final = 20.0
_STREAMS: Final = 8192
"""Bound of Serve's, beside which the router's own admission is the smaller one."""


def revision_application(app: RevisionApp, vllm_python: str | None = None) -> Any:
    """The application of one revision: a deployment for each pool, the first of which is bound with all others."""
    first, *others = app.pools
    bound = [_pool(app, plan, vllm_python) for plan in others]
    return _pool(app, first, vllm_python, *bound)


def router_application(
    plan: RouterPlan,
    replicas: int,
    streams: int | None = None,
    *,
    replica: type[RouterReplica] = RouterReplica,
    user_config: dict[str, Any] | None = None,
    more: tuple[object, ...] = (),
    resources: Mapping[str, float] | None = None,
) -> Any:
    """The application of routers: `replicas` of them, on a node each, with at most `streams` requests at once. Each
    asks its node for `resources`, by Ray's names of them. `user_config` goes to their `reconfigure`, where `replica`
    has one, and `more` behind the plan to its constructor."""
    environment = {"env_vars": {**_ONE_LOOP, ROUTES: "1"}}
    options = {"num_cpus": 0, "resources": dict(resources or {}), "runtime_env": environment}
    deployment = serve.deployment(serve.ingress()(replica)).options(
        name=ROUTER,
        num_replicas=replicas,
        max_replicas_per_node=1,
        max_ongoing_requests=2 * (streams or _STREAMS),
        ray_actor_options=options,
        user_config=user_config,
        graceful_shutdown_timeout_s=plan.drain_s + _ROUTER_TIMES_S,
        graceful_shutdown_wait_loop_s=0.1,
        health_check_period_s=1.0,
        health_check_timeout_s=5.0,
    )
    return deployment.bind(plan.encoded(), *more)


def _pool(app: RevisionApp, plan: DeploymentPlan, vllm_python: str | None, *others: Any) -> Any:
    times = replica_times(plan.drain_s)
    spread = {} if plan.gang > 1 else {"max_replicas_per_node": plan.options.max_replicas_per_node}
    gang = {"gang_scheduling_config": GangSchedulingConfig(gang_size=plan.gang)} if plan.gang > 1 else {}
    deployment = serve.deployment(WorkerReplica).options(
        name=plan.pool,
        autoscaling_config=_counts(app.name, plan),
        ray_actor_options=_actor_options(plan.options),
        graceful_shutdown_timeout_s=times.graceful_shutdown_timeout_s,
        graceful_shutdown_wait_loop_s=times.graceful_shutdown_wait_loop_s,
        health_check_period_s=times.health_check_period_s,
        health_check_timeout_s=times.health_check_timeout_s,
        **{key: value for key, value in spread.items() if value is not None},
        **gang,
    )
    told = WorkerPlan(app.service, plan.pool, app.revision, vllm_python)
    return deployment.bind(told.encoded(), *others)


def _counts(app: str, plan: DeploymentPlan) -> AutoscalingConfig:
    """The hub's table has the only say: no delays, and no bounds but Serve's own."""
    policy = AutoscalingPolicy(
        policy_function=WantedReplicas,
        policy_kwargs={"app": app, "deployment": plan.pool, "gang": plan.gang},
    )
    return AutoscalingConfig(
        min_replicas=0,
        max_replicas=plan.most * plan.gang,
        initial_replicas=plan.first * plan.gang,
        upscale_delay_s=0,
        downscale_delay_s=0,
        downscale_to_zero_delay_s=0,
        policy=policy,
    )


def _actor_options(options: ActorOptions) -> dict[str, Any]:
    asked = {
        "num_cpus": options.num_cpus,
        "num_gpus": options.num_gpus,
        "resources": options.resources,
        "runtime_env": {"env_vars": {**_ONE_LOOP, **_NO_INGRESS}},
    }
    return asked if options.accelerator_type is None else {**asked, "accelerator_type": options.accelerator_type}
