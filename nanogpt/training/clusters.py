"""How the same training is started on a cluster: scripts to fill in. None of them was run by us.

What was run are two agents on one machine, by the same torchrun with the same options: see
tests/training/test_distributed.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

NOTE = """\
# NOT RUN BY US on such a cluster. Fill in what is in capitals. Every host needs this folder, its
# packages and the corpus; --out must be on storage that all hosts share, as each reads its state.
# A lost process: torchrun starts all again, and they resume. A lost job: submit it again."""

RENDEZVOUS = "--rdzv-backend=c10d --max-restarts=3"

SLURM = """\
#!/bin/bash
{note}
#SBATCH --job-name=nanogpt
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --requeue
cd /SHARED/nanogpt-notebooks
export HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# export GLOO_SOCKET_IFNAME=INTERFACE NCCL_SOCKET_IFNAME=INTERFACE    where a host has several
srun bash -c '.venv/bin/torchrun --nnodes=$SLURM_NNODES --nproc-per-node=4 {rendezvous} \\
  --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=$HEAD:29500 \\
  --rdzv-conf=is_host=$([ $SLURM_NODEID = 0 ] && echo true || echo false) \\
  -m nanogpt train {words}'
"""

KUBERNETES = """\
{note}
apiVersion: v1
kind: Service
metadata: {{name: nanogpt}}
spec: {{clusterIP: None, publishNotReadyAddresses: true, selector: {{job-name: nanogpt}}}}
---
apiVersion: batch/v1
kind: Job
metadata: {{name: nanogpt}}
spec:
  completions: 2
  parallelism: 2
  completionMode: Indexed
  backoffLimit: 6
  template:
    spec:
      subdomain: nanogpt
      restartPolicy: OnFailure
      containers:
      - name: train
        image: IMAGE
        workingDir: /SHARED/nanogpt-notebooks
        resources: {{limits: {{nvidia.com/gpu: 4}}}}
        env:
        - name: POD_IP
          valueFrom: {{fieldRef: {{fieldPath: status.podIP}}}}
        command: [bash, -c]
        args:
        - |
          torchrun --nnodes=2 --nproc-per-node=4 {rendezvous} \\
            --rdzv-id=nanogpt --rdzv-endpoint=nanogpt-0.nanogpt:29500 --local-addr=$POD_IP \\
            --rdzv-conf=is_host=$([ $JOB_COMPLETION_INDEX = 0 ] && echo true || echo false) \\
            -m nanogpt train {words}
        volumeMounts: [{{name: shared, mountPath: /SHARED}}]
      volumes:
      - name: shared
        persistentVolumeClaim: {{claimName: CLAIM}}
"""

SCRIPTS = {"slurm": SLURM, "kubernetes": KUBERNETES}


def cluster_script(kind: str, words: Sequence[str] = ()) -> str:
    """The script that starts `python -m nanogpt train` with these words on a cluster of a kind.

    "slurm" is for sbatch, "kubernetes" for kubectl apply. Adds --resume, and an --out where there
    is none. Raises ValueError for another kind, and for words that hold a quote.
    """
    if kind not in SCRIPTS:
        raise ValueError(f"a cluster {kind!r}: choose from {', '.join(SCRIPTS)}")
    words = [word for word in words if word != "--resume"]
    if not any(word == "--out" or word.startswith("--out=") for word in words):
        words += ["--out", "/SHARED/runs/first"]
    if any("'" in word for word in words):
        raise ValueError("a word holds a quote ('): put it into the script by hand")
    # In double quotes, as Slurm's command is in single ones.
    plain = [w if shlex.quote(w) == w else f'"{_escaped(w)}"' for w in [*words, "--resume"]]
    return SCRIPTS[kind].format(note=NOTE, rendezvous=RENDEZVOUS, words=" ".join(plain))


def _escaped(word: str) -> str:
    return "".join(f"\\{char}" if char in '\\"$`' else char for char in word)
