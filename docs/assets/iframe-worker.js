/* Search without a server: a browser starts no worker for a page that is opened from disk. There this stands in for
   `Worker`: the script runs in a hidden frame, and messages are passed as events. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inner = frame.contentWindow
      this.ready = new Promise((resolve) => {
        const script = inner.document.createElement("script")
        script.src = new URL(address, document.baseURI).href
        script.onload = resolve
        inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
        inner.document.body.append(script)
      })
      this.deliver = (data) => inner.dispatchEvent(new MessageEvent("message", { data }))
    }

    postMessage(data) {
      this.ready.then(() => this.deliver(data))
    }
  }
}
