# What the official image's first start does: a cluster with one owner and password, then the
# scripts of /docker-entrypoint-initdb.d.
set -eu
export PGDATA=/tmp/postgres
if [ ! -e "$PGDATA" ]; then
    printf %s "$POSTGRES_PASSWORD" >/tmp/password
    initdb --encoding=UTF8 --locale=C.UTF-8 --username="$POSTGRES_USER" --pwfile=/tmp/password --auth=scram-sha-256 --auth-local=trust >/dev/null
    rm /tmp/password
    echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
    pg_ctl start --wait -o "-c listen_addresses= -k /tmp"
    for script in /docker-entrypoint-initdb.d/*.sql; do
        psql --host=/tmp --username="$POSTGRES_USER" --dbname=postgres --set=ON_ERROR_STOP=1 --quiet --file="$script"
    done
    pg_ctl stop --wait
fi
exec postgres -c listen_addresses='*' -k /tmp
