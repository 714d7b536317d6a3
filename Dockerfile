# Workers, scheduler and command line in one image; the command decides which it is.
# Base images and uv are pinned by exact version: take newer ones with security fixes as you take new dependencies. A tag
# can be moved; to pin the content, add the digest that `docker buildx imagetools inspect IMAGE` prints: IMAGE@sha256:…
FROM python:3.13.16-slim-trixie AS build

# The version in requirements.lock.
RUN pip install --no-cache-dir uv==0.13.7
WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY outbox outbox
COPY jobs jobs
COPY scheduler scheduler
# The lock gives versions and hashes to what is installed, the tools that build it included. Every extra: settings such
# as OUTBOX_WEBHOOK_URL and OUTBOX_WEBHOOK_CLIENT ask for one when the container is running. Compiled here, since the
# user of the container may not write below /venv: every process, each health check too, would compile all anew.
RUN uv venv /venv \
    && uv pip install --python /venv/bin/python --compile-bytecode \
        --constraints requirements.lock --build-constraints requirements.lock \
        ".[curl,encryption,kafka,metrics,nats,otel,postgres,pydantic,rabbitmq,redis,typed,ui,webhooks]"

FROM python:3.13.16-slim-trixie

RUN useradd --create-home --uid 10001 outbox
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1
WORKDIR /app
# Your application goes here instead: whatever holds your handlers.
COPY examples examples
USER outbox
CMD ["outbox", "--help"]
