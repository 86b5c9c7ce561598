#!/bin/sh
# Makes an image fit for sandboxes; every Dockerfile here runs it once, as root.
#
#   prepare.sh PACKAGE…   installs Debian packages (PROGRAM:PACKAGE… only where the base has no such program yet)
#
# Then there is a user `sandbox` with the ids 1000, its home /home/sandbox, and /workspace, all as sandboxes expect them.
set -eu
export DEBIAN_FRONTEND=noninteractive

wanted=""
for package in "$@"; do
    case $package in
    *:*) command -v "${package%%:*}" >/dev/null 2>&1 || wanted="$wanted $(echo "${package#*:}" | tr , ' ')" ;;
    *) wanted="$wanted $package" ;;
    esac
done
apt-get -qq update
# shellcheck disable=SC2086
apt-get -qq install --yes --no-install-recommends ca-certificates $wanted >/dev/null
apt-get clean
rm -rf /var/lib/apt/lists/* /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log

# Official language images have a user of their own with this id.
known=$(getent passwd 1000 | cut -d: -f1)
group=$(getent group 1000 | cut -d: -f1)
if [ -z "$group" ]; then groupadd --gid 1000 sandbox; elif [ "$group" != sandbox ]; then groupmod --new-name sandbox "$group"; fi
if [ -z "$known" ]; then
    useradd --uid 1000 --gid 1000 --home-dir /home/sandbox --create-home --shell /bin/bash sandbox
elif [ "$known" != sandbox ]; then
    usermod --login sandbox --gid 1000 --home /home/sandbox --move-home --shell /bin/bash "$known"
fi
[ -d /home/sandbox ] || install --directory --owner=1000 --group=1000 --mode=755 /home/sandbox
install --directory --owner=1000 --group=1000 --mode=755 /workspace
