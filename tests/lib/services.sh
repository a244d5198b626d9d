# shellcheck shell=bash
# Finds, or else starts, the Redis and the RabbitMQ that the tests talk to.
# Sourced by tests/run.

DEFAULT_REDIS="redis://127.0.0.1:6379"
DEFAULT_AMQP="amqp://guest:guest@127.0.0.1:5672/%2f"

# A connection that nobody answers within this is nobody.
PROBE_SECONDS=3
# A RabbitMQ node on one busy core was ready after 20 seconds; four times that.
START_SECONDS=80

# `timeout` is not on every system; there a silent peer costs the kernel's wait.
within() {
    local seconds="$1"
    shift
    if command -v timeout >/dev/null; then timeout "$seconds" "$@"; else "$@"; fi
}

# The host and port of a URL, with the default port of its scheme.
host_and_port() {
    local rest="${1#*://}" default_port="$2"
    rest="${rest%%/*}"
    rest="${rest##*@}"
    case "$rest" in
        *:*) echo "${rest%:*} ${rest##*:}" ;;
        *) echo "$rest $default_port" ;;
    esac
}

# A real PING. A server that wants a password first answers too; the tests then
# say themselves whether the URL's password is right.
redis_answers() {
    local host port
    read -r host port <<<"$(host_and_port "$STANDFAST_TEST_REDIS" 6379)"
    # shellcheck disable=SC2016  # expanded by the inner bash
    within "$PROBE_SECONDS" bash -c '
        exec 3<>"/dev/tcp/$0/$1" && printf "PING\r\n" >&3 && IFS= read -r line <&3
        case "$line" in +PONG* | -NOAUTH*) exit 0 ;; *) exit 1 ;; esac
    ' "$host" "$port" 2>/dev/null
}

# The AMQP 0-9-1 header; a broker answers with a method frame, whose first byte
# is 1. Anything else that listens there closes or answers otherwise.
amqp_answers() {
    local host port
    read -r host port <<<"$(host_and_port "$STANDFAST_TEST_AMQP" 5672)"
    # shellcheck disable=SC2016  # expanded by the inner bash
    within "$PROBE_SECONDS" bash -c '
        exec 3<>"/dev/tcp/$0/$1" && printf "AMQP\0\0\11\1" >&3
        [ "$(head -c 1 <&3 | od -An -tu1 | tr -d " ")" = 1 ]
    ' "$host" "$port" 2>/dev/null
}

await() {
    local what="$1" deadline=$((SECONDS + START_SECONDS))
    until "$2"; do
        if [ "$SECONDS" -ge "$deadline" ]; then
            missing "$what was started and does not answer after $START_SECONDS s; see its log"
        fi
        sleep 0.5
    done
}

root_on_debian() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null
}

# Once a run: lists of packages are slow to fetch and do not change meanwhile.
APT_UPDATED=""
apt_install() {
    echo "installing $*"
    if [ -z "$APT_UPDATED" ]; then
        apt-get update -qq || missing "apt-get update failed; install $* by hand"
        APT_UPDATED=yes
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" \
        </dev/null >/dev/null || missing "apt-get could not install $*; install it by hand"
}

docker_answers() {
    command -v docker >/dev/null && within 10 docker info >/dev/null 2>&1 &&
        docker compose version >/dev/null 2>&1
}

start_redis() {
    local folder="$TARGET/test-services/redis"
    mkdir -p "$folder"
    redis-server --daemonize yes --bind 127.0.0.1 --port 6379 --save '' --appendonly no \
        --dir "$folder" --logfile "$folder/redis.log" >/dev/null
    await "redis-server (log: $folder/redis.log)" redis_answers
    echo "redis: started on 127.0.0.1:6379, left running"
}

start_rabbitmq() {
    rabbitmq-server -detached
    await "rabbitmq-server (log: /var/log/rabbitmq)" amqp_answers
    echo "rabbitmq: started on 127.0.0.1:5672, left running"
}

# A project name of its own keeps test data away from an installation made with
# the same compose file.
start_with_docker() {
    docker compose -p standfast-tests -f compose.yaml -f tests/lib/compose.yaml \
        up -d --no-build "$1"
    await "$1 under Docker" "$2"
    echo "$1: started by Docker; 'docker compose -p standfast-tests down -v' removes it"
}

# Kills and restarts are tested on private processes, so the programs themselves
# must be here even where a shared server answers.
require_programs() {
    local package="$1" program
    shift
    for program in "$@"; do
        command -v "$program" >/dev/null && continue
        root_on_debian || missing "$program is not on the PATH; install the package $package"
        apt_install "$package"
        command -v "$program" >/dev/null || missing "$package brought no $program on the PATH"
    done
}

use_redis() {
    if redis_answers; then
        echo "redis: found"
    elif [ "$STANDFAST_TEST_REDIS" != "$DEFAULT_REDIS" ]; then
        missing "no Redis answers at STANDFAST_TEST_REDIS=$STANDFAST_TEST_REDIS"
    elif root_on_debian; then
        start_redis
    elif docker_answers; then
        start_with_docker redis redis_answers
    else
        missing "no Redis answers at $DEFAULT_REDIS; start redis-server or set STANDFAST_TEST_REDIS"
    fi
}

use_rabbitmq() {
    if amqp_answers; then
        echo "rabbitmq: found"
    elif [ "$STANDFAST_TEST_AMQP" != "$DEFAULT_AMQP" ]; then
        missing "no RabbitMQ answers at the address in STANDFAST_TEST_AMQP"
    elif root_on_debian; then
        start_rabbitmq
    elif docker_answers; then
        start_with_docker rabbitmq amqp_answers
    else
        missing "no RabbitMQ answers at 127.0.0.1:5672; start one or set STANDFAST_TEST_AMQP"
    fi
}
