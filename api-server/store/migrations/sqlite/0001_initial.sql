-- The record's first shape. The PostgreSQL file of the same name has the same tables, columns and indexes.
-- Rows refer to each other by id without foreign keys: a turn would pay for them, and only session deletion needs them.

create table sessions (
    session_id    text   not null primary key,
    kind          text   not null,
    namespace     text,
    name          text,
    principal     text   not null,
    user_id       text,
    title         text   not null,
    state         text   not null,
    metadata      text   not null,
    summary       text,
    next_seq      bigint not null,
    created_at_ms bigint not null,
    updated_at_ms bigint not null
);
create index sessions_created on sessions (created_at_ms);
create index sessions_principal on sessions (principal, created_at_ms);
create index sessions_user on sessions (user_id, created_at_ms) where user_id is not null;

create table runs (
    run_id             text   not null primary key,
    session_id         text   not null,
    seq                bigint not null,
    kind               text   not null,
    namespace          text   not null,
    name               text   not null,
    principal          text   not null,
    user_id            text,
    object_uid         text,
    object_name        text,
    status             text   not null,
    revision           text   not null,
    attempt            bigint not null,
    epoch              bigint not null,
    timeout_seconds    bigint,
    created_at_ms      bigint not null,
    started_at_ms      bigint,
    finished_at_ms     bigint,
    cancel_requested   bigint not null,
    cancellation_stage text,
    metrics            text,
    metadata           text   not null,
    input              text   not null,
    files              text,
    content            text,
    content_type       text,
    failure            text,
    retries            bigint not null default 0,
    base_seq           bigint,
    forked_from_run_id text,
    forked_from_message_index bigint,
    forked_from_session_id text,
    regenerated_from   text,
    max_sessions       bigint,
    slot               bigint,
    trace_parent       text,
    paused_at_ms       bigint,
    paused_ms          bigint not null default 0
);
create unique index runs_line on runs (session_id, seq);
create index runs_line_open on runs (session_id, seq) where finished_at_ms is null;
create index runs_open on runs (status, namespace, name, kind, created_at_ms) where finished_at_ms is null;
create index runs_finished on runs (namespace, name, kind, finished_at_ms, status) where finished_at_ms is not null;
create index runs_created on runs (created_at_ms);
create index runs_principal on runs (principal, created_at_ms);
create index runs_slots on runs (slot, namespace, name, kind, created_at_ms)
    where slot is not null and finished_at_ms is null;
create index runs_files on runs (session_id, seq) where files is not null;
create unique index runs_object on runs (namespace, object_uid) where object_uid is not null;
create index runs_object_ends on runs (finished_at_ms) where object_uid is not null;

create table events (
    run_id      text   not null,
    first_index bigint not null,
    next_index  bigint not null,
    run_bytes   bigint not null,
    frames      text   not null,
    primary key (run_id, first_index)
);

create table messages (
    run_id     text   not null,
    position   bigint not null,
    session_id text   not null,
    role       text   not null,
    body       text   not null,
    primary key (run_id, position)
) without rowid;

create table tool_calls (
    run_id          text   not null,
    call_id         text   not null,
    position        bigint not null,
    session_id      text   not null,
    run_seq         bigint not null,
    idempotent      bigint not null,
    finished        bigint not null,
    finished_index  bigint,
    unknown_outcome bigint not null,
    tool_name       text   not null,
    effect          text,
    body            text   not null,
    primary key (run_id, call_id)
);
create index tool_calls_effects on tool_calls (session_id, run_seq, finished_index) where effect is not null;

create table approvals (
    run_id           text   not null,
    call_id          text   not null,
    position         bigint not null,
    ordinal          bigint not null,
    tool_name        text   not null,
    arguments_sha256 text   not null,
    verdict          text,
    version          bigint not null,
    body             text   not null,
    decided_by       text,
    decided_at_ms    bigint,
    consumed_at_ms   bigint,
    created_at_ms    bigint not null,
    primary key (run_id, call_id)
);

create table model_calls (
    run_id             text   not null,
    call_id            text   not null,
    model              text   not null,
    provider           text   not null,
    model_id           text   not null,
    finish             text   not null,
    input_tokens       bigint not null,
    output_tokens      bigint not null,
    cache_read_tokens  bigint not null,
    cache_write_tokens bigint not null,
    reasoning_tokens   bigint not null,
    cost_nano_usd      bigint,
    first_token_ms     bigint not null,
    duration_ms        bigint not null,
    at_ms              bigint not null,
    primary key (run_id, call_id)
) without rowid;
create index model_calls_at on model_calls (at_ms);

create table call_reserves (
    run_id   text   not null,
    call_id  text   not null,
    tokens   bigint not null,
    nano_usd bigint not null,
    primary key (run_id, call_id)
);

create table model_spend (
    namespace text   not null,
    model     text   not null,
    window_ms bigint not null,
    nano_usd  bigint not null,
    primary key (namespace, model, window_ms)
);
create index model_spend_window on model_spend (window_ms);

create table revisions (
    revision      text   not null primary key,
    kind          text   not null,
    namespace     text   not null,
    name          text   not null,
    snapshot      text   not null,
    created_at_ms bigint not null
);
create index revisions_component on revisions (namespace, name, kind);

create table session_leases (
    session_id   text   not null primary key,
    worker_id    text   not null,
    registration text   not null,
    epoch        bigint not null,
    connected    bigint not null,
    at_ms        bigint not null
) without rowid;

create table replicas (
    replica_id text   not null primary key,
    seen_at_ms bigint not null
);

create table workers (
    worker_id    text   not null primary key,
    registration text   not null,
    replica_id   text   not null,
    session_id   text,
    isolated     bigint,
    detail       text
);
create index workers_session on workers (session_id);

create table idempotency_keys (
    principal     text   not null,
    user_id       text   not null,
    origin        text   not null,
    idem_key      text   not null,
    kind          text   not null,
    namespace     text   not null,
    name          text   not null,
    body_sha256   text   not null,
    run_id        text   not null,
    session_id    text   not null,
    created_at_ms bigint not null,
    primary key (principal, user_id, origin, idem_key)
);
create index idempotency_keys_session on idempotency_keys (session_id);
create index idempotency_keys_created on idempotency_keys (created_at_ms);

create table cancel_intents (
    run_id        text   not null,
    principal     text   not null,
    expires_at_ms bigint not null,
    primary key (run_id, principal)
);
create index cancel_intents_expiry on cancel_intents (principal, expires_at_ms);

create table usage_daily (
    day           bigint not null,
    principal     text   not null,
    user_id       text   not null,
    runs          bigint not null,
    sessions      bigint not null,
    created_at_ms bigint not null,
    updated_at_ms bigint not null,
    primary key (day, principal, user_id)
);

create table usage_models (
    day                bigint not null,
    principal          text   not null,
    user_id            text   not null,
    provider           text   not null,
    model_id           text   not null,
    runs               bigint not null,
    calls              bigint not null,
    priced_calls       bigint not null,
    input_tokens       bigint not null,
    output_tokens      bigint not null,
    cache_read_tokens  bigint not null,
    cache_write_tokens bigint not null,
    reasoning_tokens   bigint not null,
    cost_nano_usd      bigint not null,
    primary key (day, principal, user_id, provider, model_id)
);

create table usage_progress (
    id               bigint not null primary key,
    counted_until_ms bigint not null,
    started_at_ms    bigint,
    finished_at_ms   bigint,
    error            text
);
insert into usage_progress (id, counted_until_ms) values (1, 0);

create table blobs (
    session_id    text   not null,
    namespace     text   not null,
    digest        text   not null,
    size          bigint not null,
    created_at_ms bigint not null,
    primary key (session_id, digest)
);
create index blobs_namespace on blobs (namespace, size);
create index blobs_created on blobs (created_at_ms);

create table blob_chunks (
    session_id text   not null,
    digest     text   not null,
    chunk      bigint not null,
    bytes      blob   not null,
    primary key (session_id, digest, chunk)
);
