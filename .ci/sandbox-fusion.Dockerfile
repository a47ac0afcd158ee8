# SandboxFusion's server from a checkout of its source, with Python for its only language: stands in
# for the official image, which only its registry has. The wheels lie in the base (.ci/stack).
FROM mappa-base:local
COPY . /root/sandbox
WORKDIR /root/sandbox
# It looks for conda around its interpreter, and serves documentation that is not built here.
RUN mkdir -p docs/build /opt/fusion/condabin \
    && python3.11 -m venv /opt/fusion \
    && /opt/fusion/bin/pip install --no-cache-dir --find-links /opt/fusion-wheels sandbox
ENV PATH=/opt/fusion/bin:$PATH SANDBOX_CONFIG=local
# As the official image is started.
CMD ["bash", "scripts/run.sh"]
