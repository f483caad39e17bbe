#!/usr/bin/env bash
# Installs what the tests use of the system and pip cannot bring, where that is possible:
# a C compiler (the played driver), ip (network namespaces), unshare (mount namespaces),
# Chromium and its driver (the HTML report), Slurm and Open MPI (the launchers), Prometheus.
set -u
declare -A package=(
  [cc]="gcc libc6-dev" [ip]="iproute2" [unshare]="util-linux"
  [chromium]="chromium" [chromedriver]="chromium-driver"
  [slurmctld]="slurmctld" [slurmd]="slurmd" [srun]="slurm-client" [munged]="munge"
  [mpirun]="openmpi-bin" [prometheus]="prometheus"
)
missing=()
for command in "${!package[@]}"; do
  command -v "$command" >/dev/null || missing+=(${package[$command]})
done
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  echo "not installed, so some tests will be skipped: ${missing[*]}" >&2
  exit 0
fi
echo "installing ${missing[*]}"
apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null ||
  echo "could not install ${missing[*]}: some tests will be skipped" >&2
