// __TITLE__: written by edgekit export, and not run there.
// model.tflite goes to src/main/assets; build.gradle.kts: implementation("com.google.mediapipe:tasks-vision:latest.release")
import android.content.Context
import android.graphics.Bitmap
//? frame
import android.graphics.Canvas
import android.graphics.Color
//.
//? region
import android.graphics.RectF
//.
import com.google.mediapipe.framework.image.BitmapImageBuilder
import com.google.mediapipe.tasks.core.BaseOptions
import com.google.mediapipe.tasks.vision.core.ImageProcessingOptions
import com.google.mediapipe.tasks.vision.core.RunningMode
import com.google.mediapipe.tasks.vision.__KOTLIN_PACKAGE__.__TASK__
import kotlin.math.max
import kotlin.math.min
import kotlin.math.round

class Predictor(context: Context) : AutoCloseable {
    private val task = __TASK__.createFromOptions(context, __TASK__.__TASK__Options.builder()
        .setBaseOptions(BaseOptions.builder().setModelAssetPath("model.tflite").build())
        .setRunningMode(RunningMode.IMAGE)__KOTLIN_OPTIONS__.build())

    /** The bitmap is upright and ARGB_8888. */
    fun predict(bitmap: Bitmap) = bitmap.run {
//? crop
        val scale = min(width / __WIDTH__.0, height / __HEIGHT__.0) * __CROP__
        val w = max(1, round(__WIDTH__ * scale).toInt())
        val h = max(1, round(__HEIGHT__ * scale).toInt())
        val left = ((width - w) / 2).toFloat()
        val top = ((height - h) / 2).toFloat()
//.
//? letterbox
        val scale = min(__WIDTH__.0 / width, __HEIGHT__.0 / height)
        val w = max(1, round(__WIDTH__ / scale).toInt())
        val h = max(1, round(__HEIGHT__ / scale).toInt())
        val left = round(-((__WIDTH__ - max(1, round(width * scale).toInt())) / 2) / scale).toFloat()
        val top = round(-((__HEIGHT__ - max(1, round(height * scale).toInt())) / 2) / scale).toFloat()
//.
//? region
        val region = RectF(left / width, top / height, (left + w) / width, (top + h) / height)
        val options = ImageProcessingOptions.builder().setRegionOfInterest(region).build()
        task.__VERB__(BitmapImageBuilder(bitmap).build(), options).__KOTLIN_ANSWER__
//.
//? frame
        val framed = Bitmap.createBitmap(w, h, Bitmap.Config.ARGB_8888)
        Canvas(framed).apply { drawColor(Color.rgb(__PADDING__, __PADDING__, __PADDING__)) }.drawBitmap(bitmap, -left, -top, null)
        val answer = task.__VERB__(BitmapImageBuilder(framed).build()).__KOTLIN_ANSWER__
//? boxes
        answer.forEach { it.boundingBox().offset(left, top) }
//.
        answer
//.
//? stretch
        task.__VERB__(BitmapImageBuilder(bitmap).build()).__KOTLIN_ANSWER__
//.
    }

    override fun close() = task.close()
}
