"""The Kubernetes manifests fit their schemas, and the numbers in them each other."""

import math
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
GPU, TPU = ROOT / "launch/kubernetes.yaml", ROOT / "launch/kubernetes_tpu.yaml"
VOLUME = ROOT / "launch/kubernetes_volume.yaml"

# https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/ and, for reasons and actions,
# https://jobset.sigs.k8s.io/docs/tasks/failure_policy/
JOBSET = {"replicatedJobs", "network", "successPolicy", "failurePolicy", "startupPolicy"}
JOBSET |= {"suspend", "coordinator", "managedBy", "ttlSecondsAfterFinished"}
REPLICATED_JOB = {"name", "groupName", "template", "replicas", "dependsOn"}
FAILURE_POLICY = {"maxRestarts", "restartStrategy", "rules"}
RULE = {"name", "action", "onJobFailureReasons", "targetReplicatedJobs"}
ACTIONS = {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"}
REASONS = {"BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes"}
REASONS |= {"MaxFailedIndexesExceeded", "PodFailurePolicy"}

# Chips of a host in a slice of several hosts, and the dimensions of a topology:
# https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus
CHIPS_PER_HOST = {
    "tpu-v4-podslice": (4, 3),
    "tpu-v5-lite-podslice": (4, 2),
    "tpu-v5p-slice": (4, 3),
    "tpu-v6e-slice": (4, 2),
}


def read(path: pathlib.Path) -> list[dict]:
    return list(yaml.safe_load_all(path.read_text()))


def read_slices() -> dict:
    """The only replicated job of the JobSet."""
    (jobset,) = read(TPU)
    (slices,) = jobset["spec"]["replicatedJobs"]
    return slices


def read_container(job: dict) -> dict:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return container


def read_jobs() -> dict[str, dict]:
    """The Job of each manifest; JobSet makes its own from a template."""
    tpu = read_slices()["template"] | {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "big-align-slice-0"},
    }
    return {"gpu": read(GPU)[1], "tpu": tpu}


# Pod failure policies are stable since 1.31.
@pytest.mark.parametrize("version", ["1.31", "1.34"])
def test_manifests_fit_the_schemas(version):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for resource in [*read(GPU), *read(VOLUME), *read_jobs().values()]:
        kubernetes_validate.validate(resource, version, strict=True)


def test_a_field_that_no_schema_knows_is_noticed():
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    job = read_jobs()["gpu"]
    job["spec"]["template"]["spec"]["sharedMemory"] = "64Gi"
    with pytest.raises(kubernetes_validate.ValidationError, match="sharedMemory"):
        kubernetes_validate.validate(job, "1.31", strict=True)


def test_the_jobset_has_only_fields_and_values_that_are_published():
    (jobset,) = read(TPU)
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert set(jobset["spec"]) <= JOBSET
    policy = jobset["spec"]["failurePolicy"]
    assert set(policy) <= FAILURE_POLICY and policy["maxRestarts"] > 0
    for rule in policy["rules"]:
        assert set(rule) <= RULE
        assert rule["action"] in ACTIONS and set(rule["onJobFailureReasons"]) <= REASONS
        assert re.fullmatch("[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"])
    for job in jobset["spec"]["replicatedJobs"]:
        assert set(job) <= REPLICATED_JOB
        # The longest name of a pod is a label of the DNS.
        last = f"{job['replicas'] - 1}-{job['template']['spec']['completions'] - 1}"
        assert len(f"{jobset['metadata']['name']}-{job['name']}-{last}-00000") <= 63


def test_hosts_times_chips_are_the_topology():
    slices = read_slices()
    job = slices["template"]["spec"]
    selector = job["template"]["spec"]["nodeSelector"]
    chips, dimensions = CHIPS_PER_HOST[selector["cloud.google.com/gke-tpu-accelerator"]]
    topology = [int(n) for n in selector["cloud.google.com/gke-tpu-topology"].split("x")]
    assert len(topology) == dimensions
    assert read_container(slices["template"])["resources"]["limits"]["google.com/tpu"] == chips
    assert job["completions"] == job["parallelism"] == math.prod(topology) // chips


def test_jax_is_left_to_find_the_processes_of_slices():
    names = [variable["name"] for variable in read_container(read_jobs()["tpu"]).get("env", ())]
    assert not [name for name in names if name.startswith(("JAX_", "TPU_", "MEGASCALE_"))]
    # One Job to a node pool: JAX numbers processes by the slice that they are in.
    annotations = read(TPU)[0]["metadata"]["annotations"]
    key = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    assert annotations[key] == "cloud.google.com/gke-nodepool"


def test_the_gpu_job_counts_its_processes_once():
    service, job = read(GPU)
    pod = job["spec"]["template"]["spec"]
    env = {e["name"]: e.get("value") for e in read_container(job)["env"]}
    assert int(env["JAX_NUM_PROCESSES"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    # Pod 0 of an Indexed Job is called JOB-0, and found under its subdomain, the Service.
    host = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert env["JAX_COORDINATOR_ADDRESS"].split(":")[0] == host
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    # One process that fails ends all: the limit counts every one of them.
    assert job["spec"]["backoffLimit"] % job["spec"]["completions"] == 0


def decide(job: dict, status: int, disrupted: bool = False) -> str:
    """What a Job does with a pod that fails: the action of the first rule that fits, or Count.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
    """
    for rule in job["spec"]["podFailurePolicy"]["rules"]:
        if codes := rule.get("onExitCodes"):
            assert codes["containerName"] == read_container(job)["name"]
            if (status in codes["values"]) == (codes["operator"] == "In"):
                return rule["action"]
        elif disrupted and any(
            condition["type"] == "DisruptionTarget" for condition in rule["onPodConditions"]
        ):
            return rule["action"]
    return "Count"


def test_a_stop_and_a_lost_node_are_no_failures():
    jobs = read_jobs()
    assert decide(jobs["gpu"], 75) == decide(jobs["gpu"], 137, disrupted=True) == "Ignore"
    assert decide(jobs["gpu"], 2) == "FailJob"
    assert decide(jobs["gpu"], 1) == decide(jobs["gpu"], 137) == "Count"
    # A slice starts again as a whole, so its Job fails, for a reason that JobSet does not count.
    assert decide(jobs["tpu"], 75) == decide(jobs["tpu"], 137, disrupted=True) == "FailJob"
    assert decide(jobs["tpu"], 1) == "Count" and jobs["tpu"]["spec"]["backoffLimit"] == 0
    (rule,) = read(TPU)[0]["spec"]["failurePolicy"]["rules"]
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    assert rule["action"] == "RestartJobSetAndIgnoreMaxRestarts"


@pytest.mark.parametrize("name", ["gpu", "tpu"])
def test_pods_share_memory_storage_and_time_to_save(name):
    job = read_jobs()[name]
    pod, container = job["spec"]["template"]["spec"], read_container(job)
    paths = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert set(paths) == set(volumes)
    shared = [v for name, v in volumes.items() if paths[name] == "/dev/shm"]
    assert [v["emptyDir"]["medium"] for v in shared] == ["Memory"]
    (workdir,) = (a for a in container["command"] if a.startswith("--workdir="))
    claims = {n: v["persistentVolumeClaim"] for n, v in volumes.items() if paths[n] != "/dev/shm"}
    ((stored, claim),) = claims.items()
    assert workdir.removeprefix("--workdir=").startswith(paths[stored])
    (made,) = read(VOLUME)
    assert claim["claimName"] == made["metadata"]["name"]
    assert made["spec"]["accessModes"] == ["ReadWriteMany"]
    assert pod["restartPolicy"] == "Never" and pod["terminationGracePeriodSeconds"] >= 300
    assert job["spec"]["completionMode"] == "Indexed"


@pytest.mark.parametrize("path", [GPU, TPU], ids=["gpu", "tpu"])
def test_the_manual_makes_the_volume_before_the_pods_that_wait_for_it(path):
    sections = (ROOT / "docs/scale/launchers.md").read_text().split("\n## ")
    (section,) = (s for s in sections if f"kubectl apply -f launch/{path.name}" in s)
    before = section.partition(f"kubectl apply -f launch/{path.name}")[0]
    assert f"kubectl apply -f launch/{VOLUME.name}" in before


def test_the_dockerfile_is_clean_to_hadolint():
    beside = str(pathlib.Path(sys.executable).parent)
    program = shutil.which("hadolint", path=f"{beside}:{os.environ['PATH']}")
    if not program:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([program, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
