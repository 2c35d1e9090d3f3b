# Cleave with Python 3.11 and PyTorch for CPUs, of the wheel that `make wheel` leaves:
#
#   make wheel && docker build -t cleave . && docker run --rm cleave
FROM python:3.11-slim-bookworm
COPY build/wheel/cleave-*.whl /tmp/
RUN pip install --no-cache-dir \
      --extra-index-url https://download.pytorch.org/whl/cpu /tmp/cleave-*.whl \
    && rm /tmp/cleave-*.whl
RUN useradd --create-home cleave
USER cleave
WORKDIR /home/cleave
CMD ["python", "-m", "cleave.demo"]
