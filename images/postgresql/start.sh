#!/bin/sh
# Starts PostgreSQL for an evaluation of Cadre. The first time it makes the role and the database `cadre`, beside the place
# where they will be: a start that is cut off leaves nothing that looks like a database.
set -eu
umask 077
data=${PGDATA:?the folder of the database}
password_file=${CADRE_PASSWORD_FILE:?a file with the password of the role cadre}

if [ ! -s "$data/PG_VERSION" ]; then
  partial=$data.partial
  rm -rf "$partial"
  initdb --pgdata="$partial" --username=postgres --auth-local=peer --auth-host=scram-sha-256 \
    --encoding=UTF8 --locale=C.UTF-8 --data-checksums --no-instructions
  password=$(sed "s/'/''/g" "$password_file")
  # A statement that failed would be written to the log, password included: log_min_error_statement keeps it out.
  postgres --single -D "$partial" -c exit_on_error=on -c log_min_error_statement=panic postgres >/dev/null <<SQL
create role cadre login password '$password'
create database cadre owner cadre
SQL
  mv "$partial" "$data"
fi
# A volume that was given to a group may have opened it to that group, which PostgreSQL refuses.
chmod 0700 "$data"
# The API server asks for no compiled queries, and the image has no compiler for them.
exec postgres -D "$data" -c hba_file=/etc/cadre/pg_hba.conf -c listen_addresses='*' -c jit=off "$@"
