-- The application's own table, and a watch over the outbox's: who has changed what, and who was not allowed to.
CREATE TABLE chaos_note (transaction text PRIMARY KEY);
-- What jobs do. Nothing but the inbox keeps a second row away.
CREATE TABLE chaos_effect (message text NOT NULL);

CREATE TABLE chaos_change (
    event uuid NOT NULL,
    at timestamptz NOT NULL,
    who text NOT NULL,
    status text NOT NULL,
    attempts integer NOT NULL,
    lease uuid,
    lease_until timestamptz,
    next_attempt_at timestamptz,
    error text
);
CREATE INDEX ON chaos_change (event);
CREATE TABLE chaos_trespass (event uuid NOT NULL, what text NOT NULL);

CREATE FUNCTION chaos_watch() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    me text := current_setting('application_name');
    holder text;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        -- A job that takes over the key of one that has ended changes that one's key.
        IF OLD.next_attempt_at IS NULL AND NEW.idempotency_key = OLD.idempotency_key THEN
            INSERT INTO chaos_trespass VALUES (OLD.id, 'changed after its end, by ' || me);
        END IF;
        IF OLD.lease_until > statement_timestamp() AND NEW.lease_id <> OLD.lease_id THEN
            INSERT INTO chaos_trespass VALUES (OLD.id, 'claimed under a lease that had not run out, by ' || me);
        END IF;
        IF OLD.lease_id IS NOT NULL AND NEW.lease_id IS NULL THEN
            SELECT who INTO holder FROM chaos_change WHERE event = OLD.id AND lease = OLD.lease_id ORDER BY at LIMIT 1;
            IF holder IS DISTINCT FROM me THEN
                INSERT INTO chaos_trespass VALUES (OLD.id, 'settled by ' || me || ' under the lease of ' || holder);
            END IF;
        END IF;
        IF NEW.status = OLD.status AND NEW.lease_id IS NOT DISTINCT FROM OLD.lease_id THEN
            RETURN NULL;
        END IF;
    END IF;
    INSERT INTO chaos_change VALUES (NEW.id, clock_timestamp(), me, NEW.status, NEW.attempts, NEW.lease_id,
        NEW.lease_until, NEW.next_attempt_at, NEW.error_message);
    RETURN NULL;
END
$$;
CREATE TRIGGER chaos_watch AFTER INSERT OR UPDATE ON outbox_event FOR EACH ROW EXECUTE FUNCTION chaos_watch();

-- The scheduled times of all runs that were ever stored: the rows themselves are deleted in between.
CREATE TABLE chaos_run (scheduled_at timestamptz NOT NULL);

CREATE FUNCTION chaos_remember_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_run VALUES ((NEW.payload ->> 'scheduled_at')::timestamptz);
    RETURN NULL;
END
$$;
CREATE TRIGGER chaos_remember_run AFTER INSERT ON outbox_event FOR EACH ROW WHEN (NEW.kind = 'run')
EXECUTE FUNCTION chaos_remember_run();
