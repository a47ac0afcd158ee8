-- Run once, by the first start of the postgres container: a database for each system, and logins
-- that may do what they need and no more. Passwords come from the container's environment.
\getenv owner_password OWNER_PASSWORD
\getenv services_password SERVICES_PASSWORD
\getenv worker_password WORKER_PASSWORD
CREATE ROLE mappa_owner LOGIN PASSWORD :'owner_password';
CREATE ROLE mlflow LOGIN PASSWORD :'services_password';
CREATE ROLE prefect LOGIN PASSWORD :'services_password';
CREATE DATABASE mappa OWNER mappa_owner;
CREATE DATABASE mlflow OWNER mlflow;
CREATE DATABASE prefect OWNER prefect;

-- What these two may is granted by `mappa db upgrade` (docs/sql.md).
CREATE ROLE mappa_run NOLOGIN;
CREATE ROLE mappa_auditor NOLOGIN;
CREATE ROLE mappa_worker LOGIN PASSWORD :'worker_password' IN ROLE mappa_run;

-- A login reaches its own database.
REVOKE CONNECT, TEMPORARY ON DATABASE mappa, mlflow, prefect FROM PUBLIC;
GRANT CONNECT, TEMPORARY ON DATABASE mappa TO mappa_run, mappa_auditor;

\connect prefect
CREATE EXTENSION IF NOT EXISTS pg_trgm;
