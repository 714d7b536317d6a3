# Workers, scheduler and command line in one image; the command decides which it is.
FROM python:3.13-slim AS build

RUN pip install --no-cache-dir "uv<1"
WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY outbox outbox
COPY jobs jobs
COPY scheduler scheduler
# The lock gives versions and hashes to what is installed, the tools that build it included. Every extra: settings such
# as OUTBOX_WEBHOOK_URL and OUTBOX_WEBHOOK_CLIENT ask for one when the container is running.
RUN uv venv /venv \
    && uv pip install --python /venv/bin/python \
        --constraints requirements.lock --build-constraints requirements.lock \
        ".[curl,metrics,otel,postgres,redis,ui,webhooks]"

FROM python:3.13-slim

RUN useradd --create-home --uid 10001 outbox
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1
WORKDIR /app
# Your application goes here instead: whatever holds your handlers.
COPY examples examples
USER outbox
CMD ["outbox", "--help"]
