// Pictures from the camera.

const SIDE = 640; // px of an example

const REASONS = {
  NotAllowedError: "The browser may not use the camera. Allow it in the address bar, or choose a picture instead.",
  NotFoundError: "No camera was found. Choose a picture instead.",
  NotReadableError: "Another program uses the camera. Choose a picture instead.",
};

export class Camera {
  constructor(video) {
    this.video = video;
    this.stream = null;
  }

  get on() {
    return this.stream !== null;
  }

  async start() {
    if (!navigator.mediaDevices?.getUserMedia) {
      throw new Error("The camera needs a page over https or on this machine. Choose a picture instead.");
    }
    try {
      this.stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    } catch (error) {
      throw new Error(REASONS[error.name] ?? "The camera cannot be started. Choose a picture instead.");
    }
    this.video.srcObject = this.stream;
    await this.video.play();
  }

  stop() {
    this.stream?.getTracks().forEach((track) => track.stop());
    this.stream = null;
    this.video.srcObject = null;
  }

  // The central square of the image, as base64 of a JPEG.
  capture(size = SIDE) {
    const { videoWidth: width, videoHeight: height } = this.video;
    const side = Math.min(width, height);
    const canvas = Object.assign(document.createElement("canvas"), { width: size, height: size });
    canvas.getContext("2d").drawImage(this.video, (width - side) / 2, (height - side) / 2, side, side, 0, 0, size, size);
    return canvas.toDataURL("image/jpeg", 0.92).split(",")[1];
  }
}
