# Prints what tells one board from another, as lines of words; files as hexadecimal. Reads only; any shell of any age will do.
show() { [ -r "$1" ] && printf 'file %s %s\n' "$1" "$(head -c 65536 "$1" 2>/dev/null | od -An -v -tx1 | tr -d ' \n')"; }
for file in /proc/device-tree/model /proc/device-tree/compatible /proc/cpuinfo /proc/meminfo /etc/os-release \
    /sys/devices/system/cpu/online /sys/devices/system/cpu/cpufreq/policy*/scaling_max_freq \
    /sys/devices/system/cpu/cpufreq/policy*/cpuinfo_max_freq /sys/devices/system/cpu/cpufreq/policy*/related_cpus \
    /sys/devices/system/cpu/cpufreq/policy*/scaling_governor; do show "$file"; done
for program in /usr/bin/python3.* /bin/sh; do
    case $program in *[!0-9]config | *-config | *'*'*) continue ;; esac
    printf 'head %s %s\n' "$program" "$(head -c 20 "$program" 2>/dev/null | od -An -v -tx1 | tr -d ' \n')"
done
for name in python3 python3.10 python3.11 python3.12 python3.13 python3.14; do
    version=$("$name" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) && printf 'python %s\n' "$version"
done
printf 'libc %s\n' "$(getconf GNU_LIBC_VERSION 2>/dev/null)"
printf 'uid %s\nhome %s\n' "$(id -u)" "${XDG_DATA_HOME:-$HOME/.local/share}"
for tool in sha256sum tar readlink; do command -v "$tool" >/dev/null || printf 'lacks %s\n' "$tool"; done
folder=${1:-$HOME}
while [ ! -d "$folder" ]; do folder=$(dirname -- "$folder"); done
printf 'free_kb %s\n' "$(df -Pk "$folder" | awk 'NR == 2 { print $4 }')"
