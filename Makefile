# One entry for people and CI. `make setup` needs Python 3.11 or later, pip and make; everything else comes with it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SEEDS  ?= 800
FRESH  ?= 200
MINUTES ?= 60
CONVERSATIONS ?= 500
STRIKES ?= 20
CASES  ?= 5000
JOBS   ?= 2
BUILDER ?= docker
DEVICE ?= cuda
PY     ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
PACKAGES := tandem router prefill_worker decode_worker kv_store kv_transfer control_plane
STAMP  := $(VENV)/.tandem-setup
VENV_VLLM  ?= .venv-vllm
VENV_LM_EVAL ?= .venv-lm-eval
STAMP_VLLM := $(VENV_VLLM)/.tandem-setup

.PHONY: bench-gpu gpu-wheels setup demo up test sim sim-long drills drills-full soak conversations equality check bench protos crds constraints clean help judges bench-routing bench-goodput bench-calibration test-schemas test-checkov setup-vllm test-vllm test-vllm-long bench-vllm constraints-vllm check-constraints mutants mutants-hand mutants-changed test-busy test-vllm-next cluster-binaries cluster-binaries-full test-cluster test-cluster-api test-cluster-full images lm-eval models test-ray bench-ray

help:
	@echo "make setup   create $(VENV) with everything (CPU torch where there is no GPU)"
	@echo "make demo    one chat request through prefill, transfer and decode, explained"
	@echo "make up      router, one prefill and two decode workers with the demo model on port 8000"
	@echo "make test    the tests        make sim    $(SEEDS) simulated runs with faults, and $(FRESH) of today"
	@echo "make test-busy   the tests beside processes that compute all the time, and in random order"
	@echo "make mutants   small faults in a copy of the code, which tests must notice; mutants-changed: in changed lines"
	@echo "make sim-long   more than 100,000 simulated requests with faults, half of them on 16 workers"
	@echo "make drills  every fault at every stage on real processes, judged; drills-full: 20 rounds each with torch"
	@echo "make soak    mixed load and faults for MINUTES=$(MINUTES): memory and descriptors flat, no answer wrong"
	@echo "make conversations   conversations that return through every tier while every process is killed in turn"
	@echo "make equality   tokens of prefill + transfer + decode against one engine, 200 prompts and more"
	@echo "make judges  the router's HTTP/1.1 against nginx, granian and h11, CASES=$(CASES) connections"
	@echo "make check   lint, types, layers, generated code      make bench   measured limits"
	@echo "make setup-vllm   create $(VENV_VLLM) with vLLM      make test-vllm   the tests with vLLM as the engine"
	@echo "make test-vllm-long   vLLM's long steps and frozen ranks at their full length"
	@echo "make test-vllm-next   what Tandem uses of vLLM, in this version and the next"
	@echo "make check-constraints   whether vLLM's environments resolve for CPU, CUDA and ROCm"
	@echo "make test-schemas   the chart against the JSON schemas of three versions of Kubernetes"
	@echo "make test-checkov   charts, examples and what is made of them by checkov, in an environment of its own"
	@echo "make test-cluster   on a real Kubernetes control plane, built with Go the first time"
	@echo "make test-cluster-api   of that what needs no pods      make test-cluster-full   all of it"
	@echo "make test-ray   workers and routers on a Ray cluster of three nodes, in namespaces of its own"
	@echo "make bench-ray PEER=PYTHON   Tandem on Ray beside Ray Serve LLM, whose environment that interpreter is of"
	@echo "make images  build the container images with Docker or Podman and try them as pods run them"
	@echo "make bench-vllm   what serving vLLM through Tandem costs, against vLLM's own server"
	@echo "make models  every architecture against vLLM alone, into docs/models.md; MODELS=llama,awq: some of them"
	@echo "make lm-eval   the lm-evaluation-harness against vLLM workers and against vLLM's own server"
	@echo "make bench-gpu   what a GPU does with Tandem's parts; DEVICE=cpu shows that it runs (docs/gpu.md)"
	@echo "make bench-calibration   the fleet simulator against published ladders: simulated, published, which bars hold"
	@echo "make bench-routing   routing policies of this and other routers compete on simulated fleets"
	@echo "make bench-goodput   splits of a fleet and routers by the requests that meet TTFT and TPOT; goes on where it was"

$(STAMP): pyproject.toml constraints.txt tools/setup_environment.py
	$(PYTHON) tools/setup_environment.py $(VENV)
	@touch $(STAMP)

setup: $(STAMP)
	@command -v redis-server >/dev/null || $(PYTHON) tools/setup_redis.py

$(STAMP_VLLM): pyproject.toml constraints-vllm-cpu.txt constraints-vllm-cuda.txt tools/setup_vllm.py
	$(PYTHON) -m tools.setup_vllm $(VENV_VLLM)
	@touch $(STAMP_VLLM)

setup-vllm: $(STAMP_VLLM)

test-vllm: setup-vllm
	$(VENV_VLLM)/bin/python -m pytest tests/vllm -m "not long"

# Steps and prompts at their full length, with the bounds of production, and ranks that freeze under load.
test-vllm-long: setup-vllm
	$(VENV_VLLM)/bin/python -m pytest tests/vllm -m long

# What Tandem uses of vLLM: held against the installed version, and against the Python files of the next.
test-vllm-next: setup-vllm
	$(VENV_VLLM)/bin/python -m pytest tests/vllm_versions
	PYTHONPATH=$$($(VENV_VLLM)/bin/python -m tools.vllm_next build/vllm-next) \
		$(VENV_VLLM)/bin/python -m pytest tests/vllm_versions

# Raylets bind loopback, but Serve binds every address, and a Ray cluster is many processes: a network and a PID
# namespace of its own, with which everything ends. The shell reaps what loses its parent.
RAY_PYTHON ?= $(BIN)/python
RAY_S ?= 1200
ALONE := timeout --kill-after=10 $(RAY_S) unshare $(if $(filter 0,$(shell id -u)),,--map-root-user) --net --pid --fork \
	--kill-child=KILL --mount-proc sh -c 'ip link set lo up; "$$@"; exit $$?' sh

# KubeRay's definitions, for what is tested where there is no network.
KUBERAY := github.com/ray-project/kuberay/ray-operator@v1.5.0

test-ray: $(if $(filter $(BIN)/python,$(RAY_PYTHON)),setup)
	go mod download $(KUBERAY)
	RAY_USAGE_STATS_ENABLED=0 PYTHONPATH=$(CURDIR) $(ALONE) $(RAY_PYTHON) -m pytest tests/ray $(RAY_FLAGS)

# Needs `make setup-vllm`, and an environment for Ray Serve LLM on CPUs (docs/ray.md).
bench-ray: $(if $(filter $(BIN)/python,$(RAY_PYTHON)),setup)
	$(ALONE) $(RAY_PYTHON) -m benchmarks.ray_serve_llm --peer $(PEER) $(BENCH_FLAGS)

cluster-binaries: setup
	$(BIN)/python -m tools.cluster_binaries --if-possible

# KEDA, too: as large as nearly all others together.
cluster-binaries-full: cluster-binaries
	$(BIN)/python -m tools.cluster_binaries --if-possible --only keda,keda-adapter

# What needs no pods: resources, the contract of the API client, mirrors, leases, charts.
test-cluster-api: setup
	$(BIN)/python -m tools.cluster_binaries --if-possible --only etcd,kube-apiserver,helm,kubeconform
	$(BIN)/python -m pytest $(addprefix tests/cluster/test_,resources.py kube_cluster.py reflector.py election.py chart.py manifests.py)

test-cluster: cluster-binaries
	$(BIN)/python -m pytest tests/cluster -m "not long"

test-cluster-full: cluster-binaries-full
	$(BIN)/python -m pytest tests/cluster

# Goes on where it was interrupted: results are kept in docs/models.json by the code they are about.
models: setup-vllm
	$(VENV_VLLM)/bin/python -m tools.models $(if $(MODELS),--models $(MODELS)) $(MODELS_FLAGS)

# The harness has an environment of its own; it needs no torch.
lm-eval: setup-vllm
	@test -x $(VENV_LM_EVAL)/bin/lm_eval || $(PYTHON) -m venv $(VENV_LM_EVAL)
	@test -x $(VENV_LM_EVAL)/bin/lm_eval || $(VENV_LM_EVAL)/bin/pip install --quiet "lm-eval[api]==0.4.13" "transformers>=5.19,<6"
	$(VENV_VLLM)/bin/python -m benchmarks.lm_eval --harness $(VENV_LM_EVAL)/bin/lm_eval

bench-vllm: setup-vllm
	$(VENV_VLLM)/bin/python -m benchmarks.vllm_overhead
	$(VENV_VLLM)/bin/python -m benchmarks.vllm_bench_serve

# The chart against the JSON schemas of three versions of Kubernetes, which are too large for every environment.
test-schemas: setup
	@rm -rf build/schemas
	$(BIN)/python -m pip install --quiet --target build/schemas "kubernetes-validate>=1.37,<1.38"
	PYTHONPATH=build/schemas $(BIN)/python -m pytest tests/helm/test_helm_kubernetes_schema.py

# checkov over charts, examples and what the operator makes of them; a heavy environment of its own, so not part of CI.
test-checkov: setup
	@test -x build/checkov/bin/checkov || $(PYTHON) -m venv build/checkov
	@test -x build/checkov/bin/checkov || build/checkov/bin/pip install --quiet "checkov==3.3.30"
	TANDEM_CHECKOV=build/checkov/bin/checkov $(BIN)/python -m pytest tests/cluster/test_manifests.py

demo: setup
	$(BIN)/tandem demo

up: setup
	$(BIN)/tandem up --model demo --prefill 1 --decode 2 --port 8000

test: setup
	$(BIN)/pytest -n $(JOBS) --dist loadfile

# Nobody is alone on a machine: all of them beside four processes that compute all the time, then those that wait for
# sockets, threads or processes five times in random order beside eight. Two to three hours on two cores.
test-busy: setup
	$(BIN)/python -m tools.busy_tests whole --jobs $(JOBS)
	$(BIN)/python -m tools.busy_tests waiting --jobs $(JOBS)

# Faults thought of by people, all of which must be noticed, then a sample of each group. Eight groups took 35 minutes on two cores.
mutants: mutants-hand
	$(BIN)/python -m tools.mutants sample --jobs $(JOBS) $(addprefix --group ,$(GROUPS))

mutants-hand: setup
	$(BIN)/python -m tools.mutants hand

# In lines changed since the last tag, or SINCE: three minutes at most.
SINCE ?= $(shell git describe --tags --abbrev=0 2>/dev/null || echo HEAD~1)
mutants-changed: setup
	$(BIN)/python -m tools.mutants changed --since $(SINCE) --jobs $(JOBS)

sim: setup
	$(BIN)/tandem sim --seeds $(SEEDS) --fresh $(FRESH) --kept tests/sim/kept_seeds.txt

sim-long: setup
	$(BIN)/tandem sim --seeds 1000 --first-seed 10000 --kills 2
	$(BIN)/tandem sim --seeds 100 --first-seed 20000 --requests 500 --prefill 8 --decode 8 --kills 4

drills: setup
	$(BIN)/python -m tools.drills

drills-full: setup
	$(BIN)/python -m tools.drills --full --markdown docs/drills.md --json build/drills.json

# nginx comes from the distribution, granian into a folder of its own; a judge that cannot be had does not judge.
judges: setup
	@command -v nginx >/dev/null || apt-get install -y -q --no-install-recommends nginx >/dev/null || true
	@test -x build/granian/bin/granian || { $(PYTHON) -m venv build/granian && build/granian/bin/pip install -q "granian==2.8.9"; } || true
	PATH="$$PATH:$(CURDIR)/build/granian/bin" $(BIN)/python -m tools.http_judges --cases $(CASES)

soak: setup
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES)

conversations: setup
	$(BIN)/python -m tools.conversations --conversations $(CONVERSATIONS) --strikes $(STRIKES)

equality: setup
	$(BIN)/python -m tools.equality

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(PACKAGES) tools benchmarks
	$(BIN)/lint-imports
	$(BIN)/python tools/generate_protos.py --check
	$(BIN)/python -m tools.generate_crds --check

bench: setup
	$(BIN)/python -m benchmarks

# With BUILDER=podman, BASE=IMAGE and VLLM_BASE=IMAGE where the Dockerfiles' own bases are not to be had; IMAGES names
# some of them, and IMAGE_FLAGS has what else `python -m tools.image_check --help` knows.
images: setup
	$(BIN)/python -m tools.image_check $(IMAGES) --builder $(BUILDER) $(IMAGE_FLAGS) \
		$(if $(BASE),--base $(BASE)) $(if $(VLLM_BASE),--vllm-base $(VLLM_BASE))

# Without a GPU: `make bench-gpu DEVICE=cpu` shows that it runs. It needs no installed Tandem: PY is any Python with
# torch, transformers and the packages of `make gpu-wheels`.
bench-gpu:
	PYTHONPATH=$(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH)) $(PY) -m benchmarks.gpu --device $(DEVICE) $(GPU_FLAGS)

gpu-wheels: setup
	$(BIN)/python -m tools.gpu_wheels
	$(BIN)/python -m tools.gpu_wheels --nixl

bench-routing: setup
	$(BIN)/python -m benchmarks.routing

# Some three hours on two cores; interrupted, it tells what it has, and goes on from build/goodput.jsonl next time.
# GOODPUT_FLAGS=--ci: four short cells in less than a minute.
# The simulator is compiled where there is a C compiler: the same results in half the time.
bench-goodput: setup
	@$(BIN)/python -m tools.compiled_fleet build/fleet || test $$? -eq 3
	PYTHONPATH=build/fleet:. $(BIN)/python -P -m benchmarks.goodput $(GOODPUT_FLAGS)

# The fleet simulator against published runs: knees, throughput, queueing, and which bars hold.
bench-calibration: setup
	$(BIN)/python -m benchmarks.calibration

protos: setup
	$(BIN)/python tools/generate_protos.py

crds: setup
	$(BIN)/python -m tools.generate_crds

constraints:
	$(PYTHON) tools/setup_environment.py --freeze $(VENV)

constraints-vllm:
	$(PYTHON) -m tools.setup_vllm --freeze $(VENV_VLLM)
	$(BIN)/python -m tools.vllm_constraints write

# That the pins for CPU, CUDA and ROCm can be installed, on whatever machine.
check-constraints: setup
	$(BIN)/python -m tools.vllm_constraints check

clean:
	rm -rf $(VENV) $(VENV_VLLM) $(VENV_LM_EVAL) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
